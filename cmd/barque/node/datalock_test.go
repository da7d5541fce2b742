package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
)

// TestOneProcessADirectory: a second server does not touch the directory of a running one.
func TestOneProcessADirectory(t *testing.T) {
	needs.Root(t, "that one process uses a data directory")
	o := testOptions(t, "s1")
	held, err := enroll.Lock(t.Context(), o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(t.Context())
	cancel() // one attempt
	for name, run := range map[string]func() error{
		"server": func() error { return RunServer(short, *o, quiet()) },
		"agent":  func() error { return RunAgent(short, *o, quiet()) },
	} {
		if err := run(); err == nil || !strings.Contains(err.Error(), "another barque runs with it") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(o.DataDir); err != nil || len(left) != 1 {
		t.Errorf("it holds %v now, %v", left, err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := enroll.Lock(short, o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// TestWhatAKilledProcessLeft: a start removes the files that the process before it was about to put
// in their places.
func TestWhatAKilledProcessLeft(t *testing.T) {
	o := testOptions(t, "s1")
	left := []string{filepath.Join(credentials.Dir(o.DataDir), ".ca.key.123"),
		filepath.Join(credentials.Dir(o.DataDir), ".rejoin.json.4"), filepath.Join(o.DataDir, ".node.json.56")}
	whole := filepath.Join(credentials.Dir(o.DataDir), credentials.CAKey)
	for _, path := range append(left, whole) {
		if err := atomicfile.Write(path, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	held, err := enroll.Lock(t.Context(), o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if _, err := os.Stat(whole); err != nil {
		t.Error(err)
	}
}
