package workshop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Module returns the directory of a module, downloaded now or at an earlier time.
func (w *Workshop) Module(ctx context.Context, module, version string) (string, error) {
	key := module + "@" + version
	if dir := w.modules[key]; dir != "" {
		return dir, nil
	}
	out, err := golang(ctx, w.cache, "mod", "download", "-json", key)
	var answer struct{ Dir, Error string }
	if decodeErr := json.Unmarshal([]byte(out), &answer); err == nil {
		err = decodeErr
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err != nil {
		return "", fmt.Errorf("download %s: %w", key, err)
	}
	w.modules[key] = answer.Dir
	return answer.Dir, nil
}

// Binary builds a main package, or finds it. It is built in its module's own directory, with the
// go.mod and the go.sum of its authors.
func (w *Workshop) Binary(ctx context.Context, o Order, s Source) (string, error) {
	if s.Module == "" {
		s.Module, s.Version = o.Module, o.Version
	}
	dir, err := w.Module(ctx, s.Module, s.Version)
	if err != nil {
		return "", err
	}
	compiler, err := golang(ctx, w.cache, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, s, strings.TrimSpace(compiler), runtime.GOARCH)
	file := filepath.Join(w.cache, "programs", hex.EncodeToString(h.Sum(nil))[:16],
		filepath.Base(filepath.Join(s.Module, s.Pkg)))
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	w.say("building %s of %s %s", s.Pkg, s.Module, s.Version)
	work, err := os.MkdirTemp(w.cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	args := []string{"build", "-ldflags", strings.TrimSpace("-s -w " + s.Ldflags), "-tags", s.Tags, "-o",
		filepath.Join(work, "program")}
	modfile, err := w.rooted(ctx, dir, s.Version, work)
	if err != nil {
		return "", err
	}
	if modfile != "" {
		args = append(args, "-modfile", modfile, "-mod=mod")
	}
	if _, err := golang(ctx, dir, append(args, "./"+s.Pkg)...); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	return file, os.Rename(filepath.Join(work, "program"), file)
}

// rooted makes a go.mod for a module whose own one takes other modules from folders of the
// repository, which are not in the module: it takes these at the same version instead. It returns
// "" for other modules.
func (w *Workshop) rooted(ctx context.Context, dir, version, work string) (string, error) {
	out, err := golang(ctx, dir, "mod", "edit", "-json")
	if err != nil {
		return "", err
	}
	var mod struct {
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	if err := json.Unmarshal([]byte(out), &mod); err != nil {
		return "", err
	}
	args := []string{"mod", "edit"}
	for _, r := range mod.Replace {
		if strings.HasPrefix(r.New.Path, ".") {
			args = append(args, "-dropreplace="+r.Old.Path, "-require="+r.Old.Path+"@"+version)
		}
	}
	if len(args) == 2 {
		return "", nil
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(work, file), data, 0o644); err != nil {
			return "", err
		}
	}
	_, err = golang(ctx, work, args...)
	return filepath.Join(work, "go.mod"), err
}

// golang runs the go command in a directory.
func golang(ctx context.Context, dir string, args ...string) (string, error) {
	program := os.Getenv("GO")
	if program == "" {
		program = "go"
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	// The same flags on all machines and for all makers: a build finds what another one has cached.
	cmd.Env = append(slices.Clone(os.Environ()), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return string(out),
			fmt.Errorf("go %s, in %s: %w: %s", strings.Join(args, " "), dir, err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}
