package rootdir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func makePod(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "pods", "uid"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestChoose: a node that is upgraded in place keeps its directory until its pods are gone.
func TestChoose(t *testing.T) {
	dataDir := t.TempDir()
	if dir, stays, err := Choose(dataDir); err != nil || stays || dir != Default {
		t.Errorf("a new node: %s %t %v", dir, stays, err)
	}
	makePod(t, filepath.Join(dataDir, "kubelet"))
	if dir, stays, err := Choose(dataDir); err != nil || !stays || dir != filepath.Join(dataDir, "kubelet") {
		t.Errorf("a node with pods: %s %t %v", dir, stays, err)
	}
	if err := os.Remove(filepath.Join(dataDir, "kubelet", "pods", "uid")); err != nil {
		t.Fatal(err)
	}
	if dir, stays, err := Choose(dataDir); err != nil || stays || dir != Default {
		t.Errorf("a node whose pods are gone: %s %t %v", dir, stays, err)
	}
}

// TestComplete: a node from before keeps its directory while pods have volumes in it, and does not
// start with another one. The notice is for a node that names none.
func TestComplete(t *testing.T) {
	dataDir := t.TempDir()
	former := filepath.Join(dataDir, "kubelet")
	for named, want := range map[string]string{"": Default, "/x": "/x"} {
		if got, notice, err := Complete(dataDir, named); err != nil || got != want || notice != "" {
			t.Errorf("%q: %s %q %v", named, got, notice, err)
		}
	}
	makePod(t, former)
	for named, told := range map[string]bool{"": true, former: false} {
		if got, notice, err := Complete(dataDir, named); err != nil || got != former ||
			strings.Contains(notice, former) != told {
			t.Errorf("with pods, %q: %s %q %v", named, got, notice, err)
		}
	}
	if _, _, err := Complete(dataDir, "/x"); err == nil || !strings.Contains(err.Error(), former) {
		t.Errorf("another directory: %v", err)
	}
}

func TestClaim(t *testing.T) {
	claim := func(dir, dataDir string) error {
		lock, err := Claim(t.Context(), dir, dataDir)
		if err != nil {
			return err
		}
		return lock.Close()
	}
	dir := filepath.Join(t.TempDir(), "kubelet")
	if err := claim(dir, "/a"); err != nil {
		t.Fatal(err)
	}
	if err := claim(dir, "/b"); err != nil {
		t.Errorf("another node, when nothing is left: %v", err)
	}
	makePod(t, dir)
	if err := claim(dir, "/b"); err != nil {
		t.Errorf("the same node: %v", err)
	}
	if err := claim(dir, "/a"); err == nil || !strings.Contains(err.Error(), "data directory /b") ||
		!strings.Contains(err.Error(), "--kubelet-root-dir") {
		t.Errorf("another node, with pods: %v", err)
	}
	foreign := t.TempDir()
	makePod(t, foreign)
	if err := claim(foreign, "/a"); err == nil || !strings.Contains(err.Error(), "pods of another kubelet") {
		t.Errorf("pods of another kubelet: %v", err)
	}
	dataDir := t.TempDir()
	makePod(t, filepath.Join(dataDir, "kubelet"))
	if err := claim(filepath.Join(dataDir, "kubelet"), dataDir); err != nil {
		t.Errorf("the directory of before: %v", err)
	}
}

func TestMountOf(t *testing.T) {
	mounts := []*mountinfo.Info{
		{Mountpoint: "/", Optional: "shared:1"}, {Mountpoint: "/var", Optional: ""},
		{Mountpoint: "/var/lib", Optional: "master:3"},
		{Mountpoint: "/srv", Optional: ""}, {Mountpoint: "/srv", Optional: "shared:7 master:2"},
	}
	for path, want := range map[string]bool{"/opt/x": true, "/var/log": false, "/var/lib/kubelet": false, "/srv": true,
		"/srv/x": true, "/variety": true} {
		if got := isShared(mountOf(mounts, path)); got != want {
			t.Errorf("%s is shared: %t", path, got)
		}
		if f := propagation(mounts, path); !f.OK || f.Doubt == want || f.Doubt != (f.Remedy != "") {
			t.Errorf("%s: %+v", path, f)
		}
	}
}
