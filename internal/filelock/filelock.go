// Package filelock lets one process at a time use a resource, such as a directory. The lock is the
// kernel's, on an open file: it ends with the process in any case, and the file stays.
//
// It does not lock within one process: a process that opens the file twice has two claims on the
// lock.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld is returned when another process had the lock all the time.
var ErrHeld = errors.New("another process holds the lock")

// look is how often it is tried.
const look = 50 * time.Millisecond

// Held reports whether another process holds the lock on a file now. It makes no file and keeps no
// lock. A missing file is not locked.
func Held(path string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		switch {
		case err == nil:
			return false, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return true, nil
		case !errors.Is(err, unix.EINTR):
			return false, &os.PathError{Op: "lock", Path: path, Err: err}
		}
	}
}

// Acquire locks a file, which it makes, closed to others, if it is missing. While another process
// has the lock it waits, until ctx ends; then the error wraps ErrHeld and the cause. Closing the
// file releases the lock.
func Acquire(ctx context.Context, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return file, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(&os.PathError{Op: "lock", Path: path, Err: err}, file.Close())
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w (%w)", path, ErrHeld, context.Cause(ctx)), file.Close())
		}
	}
}
