package storetest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/needs"
)

// SmallVolume mounts a file system of some size (as root), which goes with the test.
func SmallVolume(t testing.TB, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		if os.Geteuid() == 0 && !errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
		needs.NoError(t, err, "a disk that is full under the store")
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
