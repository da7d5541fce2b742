package fsgroup

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/needs"
)

func TestApply(t *testing.T) {
	needs.Root(t, "ownership of volumes")
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	for path, mode := range map[string]os.FileMode{outside: 0o600, filepath.Join(dir, "f"): 0o600} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "d", "link")); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: new(int64(4711))}}}
	if err := Apply(t.Context(), pod, dir, false); err != nil {
		t.Fatal(err)
	}
	group := func(path string) (uint32, os.FileMode) {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Gid, info.Mode()
	}
	for path, want := range map[string]os.FileMode{"f": 0o660, "d": os.ModeDir | os.ModeSetgid | 0o770} {
		if gid, mode := group(filepath.Join(dir, path)); gid != 4711 || mode != want {
			t.Errorf("%s: %d %v, want %v", path, gid, mode, want)
		}
	}
	if gid, mode := group(outside); gid == 4711 || mode != 0o600 {
		t.Errorf("a file behind a symbolic link was changed: %d %v", gid, mode)
	}
	// The directory is as it should be: under this policy nothing below it is looked at.
	if err := os.Chown(filepath.Join(dir, "f"), 0, 0); err != nil {
		t.Fatal(err)
	}
	pod.Spec.SecurityContext.FSGroupChangePolicy = new(v1.FSGroupChangeOnRootMismatch)
	if err := Apply(t.Context(), pod, dir, false); err != nil {
		t.Fatal(err)
	}
	if gid, _ := group(filepath.Join(dir, "f")); gid != 0 {
		t.Errorf("OnRootMismatch has changed a file: %d", gid)
	}
	pod.Spec.SecurityContext.FSGroup = new(int64(4712))
	if err := Apply(t.Context(), pod, dir, false); err != nil {
		t.Fatal(err)
	}
	if gid, _ := group(filepath.Join(dir, "f")); gid != 4712 {
		t.Errorf("another group: %d", gid)
	}
}
