package hostmount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/needs"
)

func TestMounter(t *testing.T) {
	needs.Root(t, "mounts of pods on the host")
	dir := t.TempDir()
	at, volume := filepath.Join(dir, "pod", "tmp"), filepath.Join(dir, "volume")
	for _, d := range []string{at, volume} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := Mounter{}
	t.Cleanup(func() {
		if err := m.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second does nothing
		if err := m.Tmpfs(at, 1<<20, Root{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if points, err := mountpointsBelow(dir); err != nil || len(points) != 1 {
		t.Errorf("mounted: %v %v", points, err)
	}
	// A kernel that can keep the files off the swap must do so.
	probe := filepath.Join(dir, "probe")
	if err := os.Mkdir(probe, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", probe, "tmpfs", 0, "noswap"); err == nil {
		raw, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, " "+at+" ") && !strings.Contains(line, "noswap") {
				t.Errorf("its files may reach the swap: %s", line)
			}
		}
		if err := m.Unmount(probe); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Logf("this kernel's tmpfs has no option noswap: %v", err)
	}
	// A symlink in the volume does not lead out of it.
	if err := os.Symlink("/etc", filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "pod", "sub", "0")
	if err := m.BindBelow(volume, "out/passwd", target); err == nil {
		t.Error("a subPath led out of its volume")
	}
	// What a user has made in the volume keeps its mode and owner when a directory is made below
	// it.
	private := filepath.Join(volume, "private")
	if err := errors.Join(os.Mkdir(private, 0o700), os.Chown(private, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "pod", "sub", "1")
	if err := m.BindBelow(volume, "private/new", other); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(private)
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o700 || stat.Uid != 1000 || stat.Gid != 1000 {
		t.Errorf("the directory of a user has become %v, %d, %d", info.Mode(), stat.Uid, stat.Gid)
	}
	if err := m.BindBelow(volume, "new/dir", target); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(volume, "new", "dir", "f")); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := m.Unmount(filepath.Join(dir, "pod")); err != nil {
			t.Fatal(err)
		}
	}
	if points, err := mountpointsBelow(dir); err != nil || len(points) != 0 {
		t.Errorf("still mounted: %v %v", points, err)
	}
}

// TestMountsBelowAVolume: a mount below a volume, before or after it is bound, neither keeps it
// from being removed nor goes with it.
func TestMountsBelowAVolume(t *testing.T) {
	needs.Root(t, "mounts below the volumes of pods")
	m := Mounter{}
	for name, release := range map[string]func(string) error{"Release": m.Release, "Unmount": m.Unmount} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			disk, place := filepath.Join(dir, "disk"), filepath.Join(dir, "pod", "v")
			t.Cleanup(func() {
				if err := m.Unmount(dir); err != nil {
					t.Error(err)
				}
			})
			mounted := func(at string) {
				t.Helper()
				if err := os.MkdirAll(at, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := m.Tmpfs(at, 1<<20, Root{Mode: 0o755}); err != nil {
					t.Fatal(err)
				}
			}
			mounted(disk)
			if err := unix.Mount("", disk, "", unix.MS_SHARED, ""); err != nil { // as systemd has all
				t.Fatal(err)
			}
			mounted(filepath.Join(disk, "before"))
			if err := m.Bind(disk, place, Bind{}); err != nil {
				t.Fatal(err)
			}
			mounted(filepath.Join(disk, "after"))
			if points, err := mountpointsBelow(place); err != nil || len(points) != 3 {
				t.Fatalf("the pod has %v %v, want all three", points, err)
			}
			if err := release(place); err != nil {
				t.Fatal(err)
			}
			points, err := mountpointsBelow(dir)
			if want := []string{disk, filepath.Join(disk, "before"), filepath.Join(disk, "after")}; err != nil ||
				!slices.Equal(points, want) {
				t.Errorf("left: %v %v, want %v", points, err, want)
			}
		})
	}
}
