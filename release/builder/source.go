package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// repository is where the sources of a release are published.
const repository = "https://github.com/barque/barque"

// source is the commit that is released.
type source struct {
	commit   string // in full
	time     time.Time
	describe string // the answer of git describe
}

// head returns the commit that is checked out. It refuses a tree with changes: they
// would not be in the release.
func head(ctx context.Context) (source, error) {
	var s source
	changed, err := output(ctx, "", nil, "git", "status", "--porcelain")
	if err != nil {
		return s, err
	}
	if changed != "" {
		return s, fmt.Errorf(
			"a release is built from a commit, and these are not committed; commit, remove or stash them:\n%s", changed)
	}
	if s.commit, err = output(ctx, "", nil, "git", "rev-parse", "HEAD"); err != nil {
		return s, err
	}
	seconds, err := output(ctx, "", nil, "git", "log", "-1", "--format=%ct", s.commit)
	if err != nil {
		return s, err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return s, fmt.Errorf("the time of commit %s: %w", s.commit, err)
	}
	s.time = time.Unix(unix, 0).UTC()
	// A fixed length, as git's own depends on how many objects a clone has.
	s.describe, err = output(ctx, "", nil, "git", "describe", "--tags", "--always", "--abbrev=12", s.commit)
	return s, err
}

// export writes the commit's files below dir, which it makes anew.
func (s source) export(ctx context.Context, dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "git", "archive", "--format=tar", s.commit)
	var failure bytes.Buffer
	command.Stderr = &failure
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	err = unpack(out, dir)
	_, rest := io.Copy(io.Discard, out)
	if waited := command.Wait(); waited != nil {
		return fmt.Errorf("git archive %s: %w: %s", s.commit, waited, bytes.TrimSpace(failure.Bytes()))
	}
	return errors.Join(err, rest)
}

// unpack writes the directories, files and links of a tar below dir.
func unpack(from io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(from); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeXGlobalHeader: // the commit's name
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		case tar.TypeReg:
			var f *os.File
			if f, err = root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode().Perm()); err != nil {
				return err
			}
			_, err = io.Copy(f, t)
			err = errors.Join(err, f.Close(), root.Chtimes(name, h.ModTime, h.ModTime))
		default:
			err = fmt.Errorf("%s has the type %q", h.Name, h.Typeflag)
		}
		if err != nil {
			return err
		}
	}
}

// goVersion is the toolchain that go.mod names.
var goVersion = regexp.MustCompile(`(?m)^go (\d+\.\d+\.\d+)$`)

// toolchain returns the Go toolchain of the sources, such as go1.26.8.
func toolchain(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	m := goVersion.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s/go.mod names no whole version of Go", dir)
	}
	return "go" + string(m[1]), nil
}

// output runs a command, and returns its output without the last line's end. An empty environment
// is that of this process.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir, command.Env = dir, env
	var failure bytes.Buffer
	command.Stderr = &failure
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(failure.Bytes()))
	}
	return strings.TrimRight(string(out), "\n"), nil
}
