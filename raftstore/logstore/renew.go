package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// renewTries is how often the log may be cut while it is copied.
const renewTries = 5

// ErrNoRoom is returned if the volume has too little space for a copy of the log.
var ErrNoRoom = errors.New("the volume has too little space for a copy of the log")

// Renew copies the log into a new file, or directory, which has nothing of the entries that were
// deleted: a Boltdb leaves them in its free pages, and a WAL in a segment that is in use yet. The
// log stays in use, as with Shrink. It returns when the old one is gone. A crash at any moment
// leaves one whole log: see record.
func (l *Log) Renew(ctx context.Context) (err error) {
	for range renewTries {
		if err = l.renew(ctx); !errors.Is(err, errCutMeanwhile) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write the log anew: %w", err)
	}
	return nil
}

func (l *Log) renew(ctx context.Context) error {
	if l.home == nil {
		return nil
	}
	cuts := l.cuts.Load()
	from, err := l.roomForCopy()
	if err != nil {
		return err
	}
	c := &copying{log: l, from: from, cuts: cuts, to: l.home.next(from.Kind)}
	if _, err := c.make(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(l.home.path(from)); err != nil { // which make only logs
		return fmt.Errorf("remove the log before this one: %w", err)
	}
	return nil
}

// roomForCopy returns the log's record, or ErrNoRoom: a copy must not take the last space of
// others.
func (l *Log) roomForCopy() (record, error) {
	l.access.RLock()
	defer l.access.RUnlock()
	rec := l.home.rec
	info, err := os.Stat(l.home.path(rec))
	if errors.Is(err, fs.ErrNotExist) {
		return rec, errCutMeanwhile // it was replaced
	}
	if err != nil || rec.Kind != Boltdb {
		return rec, err // a WAL is as large as its entries, which are few
	}
	needed := 2 * (info.Size() - l.freePages())
	free, err := l.volumeFree()
	if err == nil && free < needed {
		err = fmt.Errorf("%w: %d bytes are free, and %d are needed", ErrNoRoom, free, needed)
	}
	return rec, err
}

// volumeFree returns the free bytes of the log's volume.
func (l *Log) volumeFree() (int64, error) {
	if l.opts.volumeFree != nil {
		return l.opts.volumeFree(), nil
	}
	var volume unix.Statfs_t
	if err := unix.Statfs(l.home.dir, &volume); err != nil {
		return 0, fmt.Errorf("look for the free space of the log's volume: %w", err)
	}
	return int64(volume.Bavail) * volume.Bsize, nil
}
