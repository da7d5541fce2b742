// Package suiterun has the common parts of the commands that run suites of others against a dev
// cluster: building from a module beside Barque's own, and a part of a page that a run writes.
package suiterun

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Module is the directory, below the root of Barque's source, of a module that has tools and their
// versions only.
type Module string

// Go runs the go command in the module.
func (m Module) Go(ctx context.Context, args ...string) (string, error) {
	program := os.Getenv("GO")
	if program == "" {
		program = "go"
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = string(m)
	// The same flags on all machines and for all makers: a build finds what another one has cached.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s, in %s: %w: %s",
			strings.Join(args, " "), m, err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}

// Source returns the version of a required module and the directory of its source, downloaded now
// or at an earlier time.
func (m Module) Source(
	ctx context.Context, path string, say func(format string, args ...any),
) (version, dir string, err error) {
	out, err := m.Go(ctx, "list", "-m", "-f", "{{.Version}} {{.Dir}}", path)
	if err != nil {
		return "", "", err
	}
	version, dir, _ = strings.Cut(strings.TrimSpace(out), " ")
	if dir != "" {
		return version, dir, nil
	}
	say("downloading %s %s", path, version)
	if _, err := m.Go(ctx, "mod", "download", path); err != nil {
		return "", "", err
	}
	dir, err = m.Go(ctx, "list", "-m", "-f", "{{.Dir}}", path)
	return version, strings.TrimSpace(dir), err
}

// Key names the module's versions, the compiler, and the inputs of what is made of them.
func (m Module) Key(ctx context.Context, inputs any) (string, error) {
	h := sha256.New()
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(string(m), file))
		if err != nil {
			return "", fmt.Errorf("%w; run this in the root of Barque's source", err)
		}
		h.Write(data)
	}
	compiler, err := m.Go(ctx, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(h, compiler, runtime.GOARCH, inputs)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// Once makes a directory, or finds that of an earlier time.
func Once(dir string, make func(work string) error) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cache := filepath.Dir(dir)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := make(work); err != nil {
		return err
	}
	// Renamed when all is there: a directory that exists is whole.
	if err := os.Rename(work, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
