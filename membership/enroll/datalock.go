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
	PID     int    // 0 if unknown
	Command string // the program's name without its arguments, which may have a token
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

// CheckUnused returns a *UsedError, at once, if a process uses the data directory.
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

// Lock locks a data directory for one process, until the file is closed or the process ends.
// Without it a second process with --wipe would drop the store of the first before it finds the
// ports taken. Unfinished files of a killed process, which may be private keys, are removed.
func Lock(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, dataLockWait)
	defer cancel()
	file, err := filelock.Acquire(ctx, LockFile(dir))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return nil,
			fmt.Errorf("data directory %s: %w: another barque runs with it; nothing was changed, stop that one first",
				dir, err)
	case err != nil:
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := errors.Join(atomicfile.SweepDir(dir), atomicfile.SweepDir(credentials.Dir(dir))); err != nil {
		return nil, errors.Join(fmt.Errorf("remove unfinished files: %w", err), file.Close())
	}
	return file, nil
}
