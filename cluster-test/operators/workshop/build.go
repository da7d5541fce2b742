package workshop

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/internal/atomicfile"
)

// Workshop builds programs from their modules.
type Workshop struct {
	cache   string
	say     func(format string, args ...any)
	modules map[string]string // directories, by module@version
	images  map[name.Tag]v1.Image
}

// New returns a workshop that keeps its products in a directory, and prints each step.
func New(cache string, say func(format string, args ...any)) *Workshop {
	return &Workshop{cache: cache, say: say, modules: map[string]string{}}
}

// Images are those that Build has made.
func (w *Workshop) Images() map[name.Tag]v1.Image { return w.images }

// Build builds all that the programs need, or finds it.
func (w *Workshop) Build(ctx context.Context, orders []Order) error {
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
	for _, o := range orders {
		if o.Module != "" {
			if _, err := w.Module(ctx, o.Module, o.Version); err != nil {
				return err
			}
		}
		if o.NPM != "" {
			if err := w.install(ctx, o.NPM); err != nil {
				return err
			}
		}
		for _, t := range o.Tools {
			if _, err := w.Binary(ctx, o, t); err != nil {
				return fmt.Errorf("make %s, a tool of %s: %w", t.Pkg, o.Name, err)
			}
		}
		for _, i := range o.Images {
			if err := w.image(ctx, o, i); err != nil {
				return fmt.Errorf("make the image %s of %s: %w", i.Name, o.Name, err)
			}
		}
	}
	return nil
}

func (w *Workshop) image(ctx context.Context, o Order, i Image) error {
	f := images.Foreign{Shell: i.Shell, Config: i.Config}
	if i.Foreign != nil {
		var err error
		if f, err = i.Foreign(ctx); err != nil {
			return err
		}
	}
	if f.Files == nil {
		f.Files = map[string]string{}
	}
	if f.Links == nil {
		f.Links = map[string]string{}
	}
	for path, target := range i.Links {
		f.Links[strings.TrimPrefix(path, "/")] = target
	}
	for path, s := range i.Binaries {
		file, err := w.Binary(ctx, o, s)
		if err != nil {
			return err
		}
		f.Files[strings.TrimPrefix(path, "/")] = file
	}
	for path, file := range i.Files {
		dir, err := w.Module(ctx, o.Module, o.Version)
		if err != nil {
			return err
		}
		f.Files[strings.TrimPrefix(path, "/")] = filepath.Join(dir, file)
	}
	for path, file := range i.Scripts {
		script, err := w.script(ctx, o, file)
		if err != nil {
			return err
		}
		f.Files[strings.TrimPrefix(path, "/")] = script
	}
	tag, err := name.NewTag(i.Name)
	if err != nil {
		return err
	}
	w.images[tag], err = f.Make(ctx)
	return err
}

// script returns a copy of a file of the module that may be run.
func (w *Workshop) script(ctx context.Context, o Order, file string) (string, error) {
	dir, err := w.Module(ctx, o.Module, o.Version)
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
