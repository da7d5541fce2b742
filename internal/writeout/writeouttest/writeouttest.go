// Package writeouttest returns for tests how much of a file the disk does not have yet.
package writeouttest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/needs"
)

const untested = "how much of a large file waits for the disk"

// Waiting returns how many bytes of a file are still to be written to the disk. It skips the test
// where that cannot be known.
func Waiting(t testing.TB, f *os.File) int {
	t.Helper()
	var stat unix.Cachestat_t
	switch err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &stat, 0); {
	case errors.Is(err, unix.ENOSYS):
		needs.Missing(t, "Linux 6.5, for cachestat", untested)
	case err != nil:
		t.Fatal(err)
	}
	return int(stat.Dirty+stat.Writeback) * os.Getpagesize()
}

// Disk skips the test unless written data wait for the disk by themselves in the directory.
func Disk(t testing.TB, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "waiting"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	const size = 1 << 20
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if Waiting(t, f) < size {
		needs.Missing(t, "temporary files on a disk", untested)
	}
}
