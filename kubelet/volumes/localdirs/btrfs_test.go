package localdirs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/barque/barque/internal/needs"
)

// btrfs returns a directory on a file system of that kind.
func btrfs(t *testing.T) string {
	t.Helper()
	const untested = "sizes of local volumes on btrfs"
	needs.Root(t, untested)
	mkfs := needs.Program(t, "mkfs.btrfs", untested)
	if kinds, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(kinds), "\tbtrfs\n") {
		needs.Missing(t, "btrfs in the kernel", untested)
	}
	dir := t.TempDir()
	image, disk := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 256<<20),
		os.Mkdir(disk, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{mkfs, "--quiet", image}, {"mount", "-o", "loop", "-t", "btrfs", image, disk}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// fill writes until a file has so many bytes, and returns its size when nothing more fits.
func fill(t *testing.T, path string, bytes int) (int64, error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<16)
	for i := range block {
		block[i] = byte(i) // no compression makes nothing of it
	}
	for written := 0; written < bytes; written += len(block) {
		if _, err := f.Write(block); err != nil {
			info, statErr := f.Stat()
			if statErr != nil {
				t.Fatal(statErr)
			}
			return info.Size(), err
		}
	}
	return int64(bytes), f.Sync()
}

// TestSizesOnBtrfs: with quotas a local volume is limited to its size, also after it has grown;
// without, sizes are numbers.
func TestSizesOnBtrfs(t *testing.T) {
	disk := btrfs(t)
	local, err := New(filepath.Join(disk, "volumes"), remembered{})
	if err != nil {
		t.Fatal(err)
	}
	sized := func(name, size string) *v1.PersistentVolume {
		pv := ownPV(name, local)
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
		return pv
	}
	enforces := func(want bool) {
		t.Helper()
		if got, err := local.Enforces(); err != nil || got != want {
			t.Fatalf("it enforces sizes: %t %v, want %t", got, err, want)
		}
	}
	enforces(false)
	old := sized("old", "1Mi")
	if err := local.Ensure(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("btrfs", "quota", "enable", disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	enforces(true)
	if err := errors.Join(local.Ensure(t.Context(), old), local.Limit(old)); err != nil {
		t.Errorf("a directory from before: %v", err)
	}
	if _, err := fill(t, filepath.Join(local.Root(), "old", "f"), 4<<20); err != nil {
		t.Errorf("a directory from before has a limit: %v", err)
	}

	pv := sized("pv", "8Mi")
	if err := local.Limit(pv); err != nil {
		t.Errorf("before it is made: %v", err)
	}
	for range 2 { // the second finds it done
		if err := local.Ensure(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(local.Root(), "pv", "f")
	if written, err := fill(t, file, 32<<20); !errors.Is(err, unix.EDQUOT) || written > 8<<20 {
		t.Errorf("%d bytes fit into 8 MiB: %v", written, err)
	}
	pv = sized("pv", "24Mi")
	if err := local.Limit(pv); err != nil {
		t.Fatal(err)
	}
	if written, err := fill(t, file, 16<<20); err != nil {
		t.Errorf("%d bytes fit into 24 MiB: %v", written, err)
	}
	whole, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	// data that is only in the log does not count yet
	if err := errors.Join(unix.Syncfs(int(whole.Fd())), whole.Close()); err != nil {
		t.Fatal(err)
	}
	u, err := local.Usage(t.Context(), pv)
	if err != nil || u.Capacity != 24<<20 || u.Used < 16<<20 || u.Used+u.Available != u.Capacity {
		t.Errorf("usage %+v: %v", u, err)
	}
	root, err := os.OpenRoot(local.Root())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := makeDir(root, "unlimited"); err != nil {
		t.Fatal(err)
	}
	if u, err := local.Usage(t.Context(), sized("unlimited", "1Mi")); err != nil || u == nil || u.Capacity < 128<<20 {
		t.Errorf("usage of a subvolume without a limit: %+v: %v", u, err)
	}
	if err := local.Delete(pv); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(local.Root(), "pv")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volume is there: %v", err)
	}
}
