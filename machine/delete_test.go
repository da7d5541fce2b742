package machine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/apart"
)

// TestDelete: a disk of the user that is mounted below a directory stays, with its files; the
// directory itself may be a mount.
func TestDelete(t *testing.T) {
	if !apart.Run(t, apart.Mounts, time.Minute, "a directory that is deleted around a mount") {
		return
	}
	dir := filepath.Join(t.TempDir(), "data")
	for _, d := range []string{"volumes/disk", "store"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, mount := range []string{"", "volumes/disk"} {
		at := filepath.Join(dir, mount)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, mount := range []string{"volumes/disk", ""} {
			if err := unix.Unmount(filepath.Join(dir, mount), 0); err != nil {
				t.Error(err)
			}
		}
	})
	write(t, filepath.Join(dir, "store/log"), "x")
	write(t, filepath.Join(dir, "volumes/a"), "x")
	write(t, filepath.Join(dir, "volumes/disk/photo"), "mine")
	for _, left := range []bool{true, false} {
		s, err := deleteStep(dir)
		if err != nil || s.Done == left || len(s.Lines) != 1 {
			t.Errorf("%+v %v", s, err)
		}
		if err := s.Do(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if exists(filepath.Join(dir, "store")) || exists(filepath.Join(dir, "volumes/a")) ||
		read(t, filepath.Join(dir, "volumes/disk/photo")) != "mine" {
		t.Error("the wrong files are there")
	}
}
