package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Foreign describes an image of a program of other authors: the image has the files of
// their Dockerfile.
type Foreign struct {
	Files    map[string]string // files and directories of this machine, by path in the image
	Links    map[string]string // targets of symbolic links, by path in the image
	Dirs     []string          // empty directories that every user may write to
	Users    []string          // lines of /etc/passwd beside root's, nobody's and nonroot's
	Shell    bool              // busybox
	Packages []string          // Debian packages, with the libraries that they depend on
	Config   v1.Config         // PATH is set beside it
}

// Make puts the image together. Layers of Debian packages are kept in the cache of Build.
func (f Foreign) Make(ctx context.Context) (v1.Image, error) {
	var layers []v1.Layer
	if f.Shell {
		shell, err := debianLayer(ctx, packageSet{
			packages: []string{"busybox-static"},
			trees:    map[string]func(context.Context, string) (tree, error){busyboxLayer: busyboxTree},
		}, busyboxLayer)
		if err != nil {
			return nil, err
		}
		layers = append(layers, shell)
	}
	if len(f.Packages) > 0 {
		packaged, err := debianLayer(ctx, packageSet{
			packages: f.Packages,
			trees:    map[string]func(context.Context, string) (tree, error){packagesLayer: packaged},
		}, packagesLayer)
		if err != nil {
			return nil, err
		}
		layers = append(layers, packaged)
	}
	files := f.base()
	for name, target := range f.Links {
		files.link(name, target)
	}
	for name, file := range f.Files {
		if err := files.copy(name, file); err != nil {
			return nil, err
		}
	}
	own, err := files.layer()
	if err != nil {
		return nil, err
	}
	config := f.Config
	config.Env = append([]string{searchPath}, config.Env...)
	return image(config, append(layers, own)...)
}

const packagesLayer = "packages.tar.gz"

func debianLayer(ctx context.Context, set packageSet, file string) (v1.Layer, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("where to keep the test images: %w", err)
	}
	dir, err := set.layers(ctx, filepath.Join(cache, "barque-test-images"))
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromFile(filepath.Join(dir, file))
}

// packaged takes the packages without documentation, and checks that no library of a program is
// missing.
func packaged(_ context.Context, root string) (tree, error) {
	t := tree{}
	if err := t.take(root, wanted); err != nil {
		return nil, err
	}
	var errs error
	for name, e := range t {
		if e.mode.IsRegular() && e.mode&0o111 != 0 && !isLibrary(name) && isELF(e.data) {
			errs = errors.Join(errs, t.checkLibraries(name))
		}
	}
	return t, errs
}

// wanted leaves out what no program reads, and the compiler of PostgreSQL's queries, which is
// larger than all else.
func wanted(name string) bool {
	for _, dir := range []string{"doc", "lintian", "locale", "man"} {
		if strings.HasPrefix(name, "usr/share/"+dir+"/") {
			return false
		}
	}
	base := filepath.Base(name)
	if strings.HasPrefix(base, "libLLVM") || strings.Contains(base, "llvmjit") || strings.HasSuffix(name, ".bc") {
		return false
	}
	return isLibrary(name) || !strings.Contains(base, ".so")
}

func isELF(data []byte) bool { return len(data) > 4 && string(data[:4]) == "\x7fELF" }

// base has the files of distroless' static image for a program, users and a directory for temporary
// files, and the further files of this image.
func (f Foreign) base() tree {
	t := tree{}
	users := append([]string{
		"root:x:0:0:root:/root:/bin/sh", "nobody:x:65534:65534:nobody:/:/sbin/nologin",
		"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin",
	}, f.Users...)
	t.file("etc/passwd", strings.Join(users, "\n")+"\n")
	t.file("etc/group", "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n")
	t.file("etc/nsswitch.conf", "hosts: files dns\n")
	t.dir("tmp", 0o777|fs.ModeSticky)
	for _, d := range append([]string{"home/nonroot"}, f.Dirs...) {
		t.dir(d, 0o777)
	}
	return t
}

// copy copies a file or a directory of this machine, with its permissions.
func (t tree) copy(name, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		below := tree{}
		if err := below.take(file, func(string) bool { return true }); err != nil {
			return err
		}
		for n, e := range below {
			e.mode |= 0o444
			t[filepath.Join(name, n)] = e
		}
		return nil
	}
	data, err := os.ReadFile(file)
	t[name] = entry{mode: info.Mode().Perm() | 0o444, data: data}
	return err
}
