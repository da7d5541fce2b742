package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/kubelet/rootdir"
)

// TestRootDir: a node from before keeps its directory while pods have volumes in it, and does not
// start with another one.
func TestRootDir(t *testing.T) {
	dataDir := t.TempDir()
	former := filepath.Join(dataDir, "kubelet")
	choose := func(named string) (string, error) {
		o := node.Options{DataDir: dataDir, KubeletRootDir: named}
		err := completeRootDir(&o)
		return o.KubeletRootDir, err
	}
	for named, want := range map[string]string{"": rootdir.Default, "/x": "/x"} {
		if got, err := choose(named); err != nil || got != want {
			t.Errorf("%q: %s %v", named, got, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(former, "pods", "uid"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, named := range []string{"", former} {
		if got, err := choose(named); err != nil || got != former {
			t.Errorf("with pods, %q: %s %v", named, got, err)
		}
	}
	if _, err := choose("/x"); err == nil || !strings.Contains(err.Error(), former) {
		t.Errorf("another directory: %v", err)
	}
}
