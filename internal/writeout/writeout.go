// Package writeout writes a large file without delaying other programs' syncs on the same disk.
//
// Written data stay in the kernel's memory for up to half a minute, or until a sync. Hundreds of
// megabytes of them delay the sync of another file, such as of a log's newest entry. The journal of
// ext4 first writes the data of new blocks, and the disk has a queue. A Writer waits until the disk
// has each Step before it takes more.
package writeout

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Step is how many bytes are written to the disk at once: two milliseconds of a disk that writes
// 500 MB a second.
const Step = 1 << 20

// Writer appends to a file. It implements io.Writer.
type Writer struct {
	file    *os.File
	written int64 // to the kernel
	out     int64 // the bytes of these that the disk has
	leaves  bool  // all to the sync of the file: the kernel writes no part of it out
	err     error // the first one

	writeOut func(file *os.File, from, bytes int64) error
}

// New returns a Writer to the end of a file that is empty.
func New(file *os.File) *Writer { return &Writer{file: file, writeOut: writeOut} }

// Write returns when less than a Step of the written data is not on the disk. The file must still
// be synced at its end: Write writes no metadata, and leaves data in the disk's own cache. After an
// error it writes nothing more.
func (w *Writer) Write(b []byte) (n int, err error) {
	for len(b) > 0 && w.err == nil {
		var took int
		took, w.err = w.file.Write(b[:min(len(b), int(w.out+Step-w.written))])
		n, w.written, b = n+took, w.written+int64(took), b[took:]
		if w.err == nil && w.written == w.out+Step {
			w.err = w.push()
		}
	}
	return n, w.err
}

// push writes the newest Step out and waits for it. A later sync may not return its errors again.
func (w *Writer) push() error {
	if !w.leaves {
		switch err := w.writeOut(w.file, w.out, w.written-w.out); {
		case slices.Contains(refusals, err):
			w.leaves = true
		case err != nil:
			return fmt.Errorf("write %s to the disk: %w", w.file.Name(), err)
		}
	}
	w.out = w.written
	return nil
}

// refusals are the errors of a system call without an effect. They come from a kernel in user
// space, from a filter of system calls, and for a file that is not on a disk.
var refusals = []error{unix.ENOSYS, unix.EPERM, unix.EOPNOTSUPP, unix.EINVAL, unix.ESPIPE}

// writeOut returns when a part of a file is on its disk, or in the disk's own cache. Its errors are
// the system call's numbers.
func writeOut(file *os.File, from, bytes int64) error {
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE |
		unix.SYNC_FILE_RANGE_WAIT_AFTER
	for {
		if err := unix.SyncFileRange(int(file.Fd()), from, bytes, all); err != unix.EINTR {
			return err
		}
	}
}
