package node

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/barque/barque/internal/needs"
)

// TestOneProcessADirectory: a second server does not touch the directory of one that runs.
func TestOneProcessADirectory(t *testing.T) {
	needs.Root(t, "that one process uses a data directory")
	o := options(t, "s1")
	held, err := lockData(t.Context(), o.DataDir)
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
	again, err := lockData(short, o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
