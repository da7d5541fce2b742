package osthread

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
)

// TestDo: f runs on a thread that ends after it, and its error is returned. TestFirst is about the
// first thread.
func TestDo(t *testing.T) {
	for range 100 {
		var thread int
		want := errors.New("some error")
		if err := Do(func() error { thread = unix.Gettid(); return want }); !errors.Is(err, want) {
			t.Fatalf("error %v, want %v", err, want)
		}
		task := filepath.Join("/proc/self/task", strconv.Itoa(thread))
		await.True(t, "the thread of f goes", func() bool {
			_, err := os.Stat(task)
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

// A function that does not return is an error, and does not block the caller.
func TestGoexit(t *testing.T) {
	if err := Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("no error")
	}
}

// In a network namespace that is not there f is not called.
func TestInNoNetwork(t *testing.T) {
	const name = "barque-test-no-such-namespace"
	err := InNetwork(name, func() error { t.Error("it was called"); return nil })
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v", err)
	}
}

// TestFirst: a goroutine that finds itself on the first thread leaves f to another one.
func TestFirst(t *testing.T) {
	result, thread := make(chan error, 1), 0
	done := make(chan struct{})
	onFirst <- func() {
		defer close(done)
		on(func() error { thread = unix.Gettid(); return nil }, result)
	}
	<-done
	if err := <-result; err != nil || thread == 0 || thread == os.Getpid() {
		t.Errorf("f ran on thread %d of process %d: %v", thread, os.Getpid(), err)
	}
}

// onFirst receives functions to run on the first thread.
var onFirst = make(chan func())

func init() { runtime.LockOSThread() } // TestMain is on the first thread from here on

func TestMain(m *testing.M) {
	code := make(chan int)
	go func() { code <- m.Run() }()
	for {
		select {
		case f := <-onFirst:
			f()
		case c := <-code:
			os.Exit(c)
		}
	}
}
