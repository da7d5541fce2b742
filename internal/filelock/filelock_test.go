package filelock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/filelock"
)

func TestOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	synctest.Test(t, func(t *testing.T) {
		first, err := filelock.Acquire(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if second, err := filelock.Acquire(ctx, path); !errors.Is(err, filelock.ErrHeld) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a second one: %v, %v", second, err)
		}
		time.AfterFunc(time.Second, func() { first.Close() })
		began := time.Now()
		second, err := filelock.Acquire(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < time.Second {
			t.Errorf("the second one has it after %v, when the first one still had it", waited)
		}
		second.Close()
	})
}

func TestUnusablePath(t *testing.T) {
	if file, err := filelock.Acquire(t.Context(), filepath.Join(t.TempDir(), "absent", "lock")); err == nil ||
		errors.Is(err, filelock.ErrHeld) {
		t.Errorf("without its directory: %v, %v", file, err)
	}
}

// Held finds a lock that another has, takes none itself, and makes no file.
func TestHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if held, err := filelock.Held(path); held || err != nil {
		t.Errorf("no file: %v, %v", held, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
	file, err := filelock.Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if held, err := filelock.Held(path); !held || err != nil {
		t.Errorf("locked: %v, %v", held, err)
	}
	if pid, command, ok := filelock.Holder(path); !ok || pid != os.Getpid() ||
		!strings.Contains(command, filepath.Base(os.Args[0])) {
		t.Errorf("its holder: process %d (%s), %v", pid, command, ok)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if pid, command, ok := filelock.Holder(path); ok {
		t.Errorf("given up, and its holder is process %d (%s)", pid, command)
	}
	if held, err := filelock.Held(path); held || err != nil {
		t.Errorf("given up: %v, %v", held, err)
	}
	if file, err = filelock.Acquire(t.Context(), path); err != nil {
		t.Fatalf("looking at it has taken it: %v", err)
	}
	file.Close()
}
