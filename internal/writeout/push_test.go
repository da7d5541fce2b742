package writeout

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWhatTheDiskDoesNotTake: an error of the disk is returned at once, because the final sync may
// not return it again. After a refusal the kernel is not asked again.
func TestWhatTheDiskDoesNotTake(t *testing.T) {
	for err, refused := range map[unix.Errno]bool{
		unix.EIO: false, unix.ENOSPC: false, unix.EBADF: false,
		unix.ENOSYS: true, unix.EPERM: true, unix.EOPNOTSUPP: true,
	} {
		file, failed := os.Create(filepath.Join(t.TempDir(), "large"))
		if failed != nil {
			t.Fatal(failed)
		}
		t.Cleanup(func() { file.Close() })
		asked := 0
		w := New(file)
		w.writeOut = func(*os.File, int64, int64) error { asked++; return err }
		for range 2 {
			_, got := w.Write(make([]byte, 2*Step))
			told := errors.Is(got, err) && strings.Contains(got.Error(), file.Name())
			if refused && got != nil || !refused && !told {
				t.Errorf("%v: %v", err, got)
			}
		}
		if asked != 1 {
			t.Errorf("%v: the kernel is asked %d times", err, asked)
		}
	}
}
