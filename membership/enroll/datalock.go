package enroll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/membership/credentials"
)

// dataLockWait is how long a start waits for the process before it, which may be about to end.
const dataLockWait = 5 * time.Second

// LockFile is the file of the lock on a data directory.
func LockFile(dir string) string { return filepath.Join(dir, "lock") }

// UsedError is returned for a data directory that a process runs with. It is a filelock.ErrHeld.
type UsedError struct {
	DataDir string
	PID     int    // 0 when it is not known
	Command string // what the process was started as, without what follows: a token may be there
}

func (e *UsedError) Error() string {
	by := "another process"
	if e.PID > 0 {
		by = fmt.Sprintf("process %d (%s)", e.PID, e.Command)
	}
	return fmt.Sprintf("data directory %s is in use by %s; stop it first", e.DataDir, by)
}

// Is makes it a filelock.ErrHeld.
func (e *UsedError) Is(target error) bool { return target == filelock.ErrHeld }

// CheckUnused returns a *UsedError, at once, when a process runs with the data directory.
func CheckUnused(dir string) error {
	held, err := filelock.Held(LockFile(dir))
	if err != nil || !held {
		return err
	}
	e := &UsedError{DataDir: dir}
	pid, command, _ := filelock.Holder(LockFile(dir))
	words := strings.Fields(command)
	e.PID, e.Command = pid, strings.Join(words[:min(2, len(words))], " ")
	return e
}

// Lock takes hold of a data directory for one process, until the file is closed or the process
// has ended. A second one would drop the store below the first with --wipe, before it finds the
// ports taken. What a process that was killed has not finished to write, which may be a private
// key, is removed.
func Lock(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, dataLockWait)
	defer cancel()
	file, err := filelock.Acquire(ctx, LockFile(dir))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return nil, fmt.Errorf("data directory %s: %w: another barque runs with it; nothing was changed, stop that one first", dir, err)
	case err != nil:
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := errors.Join(atomicfile.SweepDir(dir), atomicfile.SweepDir(credentials.Dir(dir))); err != nil {
		return nil, errors.Join(fmt.Errorf("remove what was not finished: %w", err), file.Close())
	}
	return file, nil
}
