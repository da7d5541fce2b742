package main

import (
	"testing"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/kubelet/rootdir"
)

// TestRootDir: a server without pods touches no directory of a kubelet, and any other node without
// the flag has the default one.
func TestRootDir(t *testing.T) {
	for want, o := range map[string]options.Options{
		"":              {DataDir: t.TempDir(), NoNode: true},
		rootdir.Default: {DataDir: t.TempDir()},
		"/x":            {DataDir: t.TempDir(), KubeletRootDir: "/x"},
	} {
		if err := completeRootDir(&o); err != nil || o.KubeletRootDir != want {
			t.Errorf("got %q (%v), want %q", o.KubeletRootDir, err, want)
		}
	}
}
