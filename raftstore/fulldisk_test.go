package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/raftstore"
)

// TestFullDisk fills the disk under a server, which must say so, must not crash, must keep what it has
// acknowledged, and must go on when there is room again.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		if os.Geteuid() == 0 && !errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
		t.Skip("a small file system needs root:", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s, err := openAlone(dir)
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	value := strings.Repeat("v", 32<<10)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err = s.Commit(ctx, put(fmt.Sprintf("/%d", acknowledged), value))
		cancel()
		if err != nil {
			break
		}
		acknowledged++
	}
	t.Logf("after %d writes: %v", acknowledged, err)
	if !errors.Is(err, raftstore.ErrUnknownOutcome) && !errors.Is(err, raftstore.ErrUnavailable) {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(limited(t), put("/after", "")); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = openAlone(dir); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v, err := s.View(limited(t), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range acknowledged {
		if _, ok := v.Get(fmt.Sprintf("/%d", i)); !ok {
			t.Fatalf("write %d of %d is lost", i, acknowledged)
		}
	}
}
