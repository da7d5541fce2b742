package machine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/barque/barque/internal/atomicfile"
)

// ProgramPath is where an installation has the program, unless a package has it elsewhere.
const ProgramPath = "/usr/local/bin/barque"

// owners are the programs that know the package of a file, with their arguments before its path.
var owners = [][]string{{"dpkg-query", "-S"}, {"rpm", "-qf"}, {"apk", "info", "--who-owns"}, {"pacman", "-Qo"}}

// Packaged reports whether a package of this machine owns a file.
func Packaged(ctx context.Context, path string, run Runner) (bool, error) {
	for _, o := range owners {
		if _, err := exec.LookPath(o[0]); err != nil {
			continue
		}
		_, err := run(ctx, o[0], append(o[1:], path)...)
		var none *ProgramError
		switch {
		case err == nil:
			return true, nil
		case !errors.As(err, &none):
			return false, fmt.Errorf("look for the package of %s: %w", path, err)
		}
	}
	return false, nil
}

// Program returns the running program, without links.
func Program() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(path, " (deleted)") {
		return "", fmt.Errorf("%s was replaced while it ran: run the command again",
			strings.TrimSuffix(path, " (deleted)"))
	}
	return filepath.EvalSymlinks(path)
}

// copyStep puts the program at a path.
func copyStep(from, to string) (Step, error) {
	s := Step{What: fmt.Sprintf("copy this program to %s", to), Do: func(context.Context) error {
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		file, err := os.Open(from)
		if err != nil {
			return err
		}
		defer file.Close()
		return atomicfile.WriteFrom(to, 0o755, func(w io.Writer) error {
			_, err := io.Copy(w, file)
			return err
		})
	}}
	if from == to {
		return Step{What: to + " is this program", Done: true, Do: s.Do}, nil
	}
	if !exists(to) {
		return s, nil
	}
	is, err := sameContent(from, to)
	if s.What = fmt.Sprintf("replace %s by this program", to); is {
		s = Step{What: to + " is this program", Done: true, Do: s.Do}
	}
	return s, err
}

// sameContent compares two files.
func sameContent(a, b string) (bool, error) {
	var sums [2][sha256.Size]byte
	var sizes [2]int64
	for i, path := range []string{a, b} {
		info, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		sizes[i] = info.Size()
	}
	if sizes[0] != sizes[1] {
		return false, nil
	}
	for i, path := range []string{a, b} {
		file, err := os.Open(path)
		if err != nil {
			return false, err
		}
		hash := sha256.New()
		_, err = io.Copy(hash, file)
		if err = errors.Join(err, file.Close()); err != nil {
			return false, err
		}
		hash.Sum(sums[i][:0])
	}
	return sums[0] == sums[1], nil
}
