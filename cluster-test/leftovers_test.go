package clustertest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What a cluster looks for when it is gone is there while it lives, and is its own alone.
func TestLeftovers(t *testing.T) {
	s := newSpace(t)
	s.K("run", "here", "--image=barque.local/hello:1")
	node := s.WaitReady("here").Spec.NodeName
	own, err := s.sharedFiles(shimSockets, cniNotes)
	if err != nil {
		t.Fatal(err)
	}
	in := func(dir string) func(string) bool { return func(f string) bool { return filepath.Dir(f) == dir } }
	if !slices.ContainsFunc(own, in(shimSockets)) || !slices.ContainsFunc(own, in(cniNotes)) {
		t.Errorf("%s runs a pod, and all that is found of the cluster is %v", node, own)
	}
	for _, f := range own {
		if text, err := os.ReadFile(f); err == nil && !strings.Contains(string(text), s.Dir) {
			t.Errorf("%s is not of %s:\n%s", f, s.Dir, text)
		}
	}
	other := &Cluster{ID: s.ID + "x", Dir: s.Dir + "x"}
	if got, err := other.sharedFiles(shimSockets, cniNotes); err != nil || len(got) > 0 {
		t.Errorf("another cluster takes for its own %v, %v", got, err)
	}
}
