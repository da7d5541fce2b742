package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// dataLockWait is how long a start waits for the process before it, which may be about to end.
const dataLockWait = 5 * time.Second

// lockData takes hold of a data directory for one process, until the file is closed or the process has ended. A
// second one would drop the store below the first with --wipe, before it finds the ports taken.
func lockData(ctx context.Context, dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dataLockWait)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return file, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
			if errors.Is(err, unix.EWOULDBLOCK) {
				continue
			}
		case <-ctx.Done():
		}
		return nil, errors.Join(fmt.Errorf("data directory %s: %w: another barque runs with it; nothing was changed, stop that one first", dir, err), file.Close())
	}
}
