package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newDisk(t *testing.T) *Disk {
	t.Helper()
	if err := Possible(); err != nil {
		t.Skip(err)
	}
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
	if err := errors.Join(d.write("kept", "kept", true), syncDir(d.Mount), d.write("lost", "lost", false)); err != nil {
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
	if err := d.Freeze(); err != nil {
		t.Fatal(err)
	}
	written := make(chan error)
	go func() { written <- d.write("late", "late", true) }() // ends with Thaw, which every path below comes to
	select {
	case err := <-written:
		t.Errorf("a frozen disk takes a write: %v", err)
		written = nil
	case <-time.After(200 * time.Millisecond):
	}
	if err := errors.Join(d.Thaw(), d.Thaw()); err != nil {
		t.Error(err)
	}
	if written != nil {
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
}
