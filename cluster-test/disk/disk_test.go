package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
)

func newDisk(t *testing.T) *Disk {
	t.Helper()
	needs.NoError(t, Possible(), "disks that are full, hang or lose power")
	dir := t.TempDir()
	d, err := New(filepath.Join(dir, "image"), filepath.Join(dir, "mount"), 32)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Detach(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *Disk) write(name, text string, sync bool) error {
	f, err := os.Create(filepath.Join(d.Mount, name))
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func TestFull(t *testing.T) {
	d := newDisk(t)
	if err := d.Fill(); err != nil {
		t.Fatal(err)
	}
	if err := d.write("more", "more", true); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a write to a full disk: %v", err)
	}
	if err := errors.Join(d.Free(), d.Free()); err != nil {
		t.Fatal(err)
	}
	if err := d.write("more", "more", true); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}

func TestPower(t *testing.T) {
	d := newDisk(t)
	// However long this takes, the kernel does not sync by itself meanwhile.
	if err := errors.Join(d.CommitEvery(300), d.write("kept", "kept", true), syncDir(d.Mount),
		d.write("lost", "lost", false)); err != nil {
		t.Fatal(err)
	}
	if err := d.CutPower(); err != nil {
		t.Fatal(err)
	}
	if err := d.write("after", "after", true); err == nil {
		t.Error("a disk without power takes a write")
	}
	if err := errors.Join(d.Detach(), d.Attach()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(d.Mount, "kept")); err != nil || string(data) != "kept" {
		t.Errorf("what was synced is %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(d.Mount, "lost")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was not synced: %v", err)
	}
}

// syncDir makes the names in a directory last.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func TestFrozen(t *testing.T) {
	d := newDisk(t)
	thread, written := make(chan int, 1), make(chan error, 1)
	err := Frozen(func() {
		go func() { // ends with the frost
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			thread <- unix.Gettid()
			written <- d.write("late", "late", true)
		}()
		stat := fmt.Sprintf("/proc/self/task/%d/stat", <-thread)
		await.True(t, "the write waits for the disk", func() bool {
			data, err := os.ReadFile(stat)
			if err != nil {
				t.Fatal(err)
			}
			state := data[bytes.LastIndexByte(data, ')')+2]
			return state == 'D' || len(written) > 0
		})
		if len(written) > 0 {
			t.Error("a frozen disk takes a write")
		}
	}, d)
	if err := errors.Join(err, d.Thaw(), <-written); err != nil {
		t.Error(err)
	}
}

// TestPanicWhileFrozen: nothing stays frozen, also when one of several disks cannot be.
func TestPanicWhileFrozen(t *testing.T) {
	d := newDisk(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		t.Error(Frozen(func() { panic("in the middle") }, d))
	}()
	if err := d.ask(thaw, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("it was still frozen after the panic: %v", err)
	}
	none := &Disk{Image: d.Image + "-none", Mount: d.Mount}
	if err := Frozen(func() { t.Error("it went on with one disk of two") }, d, none); err == nil {
		t.Error("a disk that is not there was frozen")
	}
	if err := d.ask(thaw, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("it was still frozen after another one could not be: %v", err)
	}
}

// TestDetached: nothing is ever asked of the file system below the directory of a disk that is not
// attached.
func TestDetached(t *testing.T) {
	below := newDisk(t) // so that a fault here breaks this one, and not the machine's
	inner, err := New(filepath.Join(below.Mount, "image"), filepath.Join(below.Mount, "mount"), 8)
	if err != nil {
		t.Fatal(err)
	}
	if err := inner.Detach(); err != nil {
		t.Fatal(err)
	}
	// The loop device goes a moment after the mount, at the latest when it can be attached again.
	if err := errors.Join(inner.Attach(), inner.Detach()); err != nil {
		t.Fatal(err)
	}
	frozen := Frozen(func() { t.Error("it was frozen") }, inner)
	for what, err := range map[string]error{"power": inner.CutPower(), "full": inner.Fill(),
		"commit": inner.CommitEvery(300), "frozen": frozen} {
		if !errors.Is(err, ErrDetached) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := inner.Thaw(); err != nil {
		t.Error(err)
	}
	if err := below.write("still", "well", true); err != nil {
		t.Errorf("what lies below: %v", err)
	}
}

// The processes that keep a disk are reported.
func TestHolders(t *testing.T) {
	d := newDisk(t)
	device, err := d.device()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(d.Mount, "held"))
	if err != nil {
		t.Fatal(err)
	}
	told := holders(device)
	f.Close()
	for _, want := range []string{fmt.Sprintf("process %d (", os.Getpid()), f.Name() + " open", "mounted in mnt:["} {
		if !strings.Contains(told, want) {
			t.Errorf("told without %q: %q", want, told)
		}
	}
	if told := holders(device); strings.Contains(told, " open") {
		t.Errorf("a file that was closed: %q", told)
	}
}
