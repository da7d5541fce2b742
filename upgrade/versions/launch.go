package versions

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/barque/barque/internal/logline"
	"github.com/barque/barque/internal/version"
)

// own is the version of this program.
var own = version.Version

// Marker is the variable by which a program learns that it was launched. Its value is watched for a
// program with a parent that watches it.
const (
	Marker  = "BARQUE_LAUNCHED"
	plain   = "1"
	watched = "watched"
)

// ExitAgain is the exit code by which a watched program asks its parent for another start. Parents
// are of earlier versions, so it stays.
const ExitAgain = 85

// Launched is the state of a process that is the node.
type Launched struct {
	watched bool
}

// Launch is called first by a process that is to be a node. It returns if this program counts. If
// another one does, it gives that the process, or watches it and ends with it. A program that
// cannot be started is an entry in the log, and the node runs with this one.
func Launch(dataDir string, args []string, logger *slog.Logger) (*Launched, error) {
	was, launched := os.LookupEnv(Marker)
	os.Unsetenv(Marker) // children of the node are launched by nobody
	if launched {
		return &Launched{watched: was == watched}, nil
	}
	d := In(dataDir)
	for {
		step, err := d.decide(logger)
		if err != nil || step.Do == Run {
			return &Launched{}, err
		}
		if step.Do == Watch {
			err = d.watch(step.Version, args, logger)
		} else {
			err = syscall.Exec(step.Path, args, append(os.Environ(), Marker+"="+plain))
		}
		var taken *takenBack
		if errors.As(err, &taken) {
			continue // with the program before
		}
		if step.Do == Exec {
			logger.Error("the version that counts on this node cannot be started; the installed program goes on in its place",
				"program", step.Path, "err", err)
			return &Launched{}, nil
		}
		return nil, err
	}
}

// Recorded reports whether a data directory has a record.
func Recorded(dataDir string) bool {
	_, err := os.Stat(filepath.Join(string(In(dataDir)), recordName))
	return err == nil
}

// decide reads the record, and writes it if the step needs that.
func (d Dir) decide(logger *slog.Logger) (step Step, err error) {
	if _, err := os.Stat(filepath.Join(string(d), recordName)); errors.Is(err, fs.ErrNotExist) {
		return step, nil
	}
	path, err := executable()
	if err != nil {
		return step, err
	}
	err = d.change(func(r *Record) (bool, error) {
		self, err := d.selfOf(path, r)
		if err != nil {
			return false, err
		}
		step = d.next(r, self, time.Now())
		if step.Note != "" {
			logline.Log(logger, slog.LevelInfo, step.Note)
		}
		if step.Next == nil {
			return false, nil
		}
		*r = *step.Next
		return true, nil
	})
	return step, err
}

// executable is the path of this program. A file that was replaced is at the same path.
func executable() (string, error) {
	path, err := os.Executable()
	return strings.TrimSuffix(path, " (deleted)"), err
}

// Again ends this process, and starts the program that counts in its place. It returns on errors
// only.
func (l *Launched) Again(args, env []string) error {
	if l.watched {
		os.Exit(ExitAgain)
	}
	return l.Same(args, env)
}

// Same starts this program again in this process, under the same watch. It returns on errors only.
func (l *Launched) Same(args, env []string) error {
	path, err := executable()
	if l.watched {
		env = append(slices.Clone(env), Marker+"="+watched)
	}
	if err == nil {
		err = syscall.Exec(path, args, env)
	}
	return fmt.Errorf("start again: %w", err)
}
