package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// tree is a file system layer in memory, by path without a leading slash.
type tree map[string]entry

type entry struct {
	mode   fs.FileMode // permissions, set-user-ID and set-group-ID bits, and fs.ModeDir or fs.ModeSymlink
	data   []byte
	target string // of a symbolic link
}

func (t tree) file(name, content string) { t[name] = entry{mode: 0o644, data: []byte(content)} }
func (t tree) link(name, target string) {
	t[name] = entry{mode: fs.ModeSymlink | 0o777, target: target}
}
func (t tree) dir(name string, mode fs.FileMode) { t[name] = entry{mode: fs.ModeDir | mode} }

// take copies the files of a directory on disk that keep chooses.
func (t tree) take(root string, keep func(name string) bool) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil || d.IsDir() || !keep(name) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			t.link(name, target)
			return nil
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		t[name] = entry{mode: info.Mode().Perm(), data: data}
		return nil
	})
}

// tar writes the layer: parents before children, sorted, without times and owners, so that the
// same tree gives the same bytes.
func (t tree) tar() ([]byte, error) {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = entry{mode: fs.ModeDir | 0o755}
			}
		}
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		e := all[name]
		h := &tar.Header{Name: name, Mode: int64(e.mode.Perm()), Size: int64(len(e.data)), Typeflag: tar.TypeReg,
			Format: tar.FormatPAX}
		if e.mode&fs.ModeSetuid != 0 {
			h.Mode |= 0o4000
		}
		if e.mode&fs.ModeSetgid != 0 {
			h.Mode |= 0o2000
		}
		switch {
		case e.mode.IsDir():
			h.Name, h.Typeflag = name+"/", tar.TypeDir
			if e.mode&fs.ModeSticky != 0 {
				h.Mode |= 0o1000
			}
		case e.mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.target
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// layer is the tree as a layer of an image.
func (t tree) layer() (v1.Layer, error) {
	data, err := t.tar()
	if err != nil {
		return nil, err
	}
	if data, err = compress(data); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
}

// checkLibraries makes sure that every library that the executable needs, and that those need, is
// in the layer: a missing one would only show as an exit code of a container.
func (t tree) checkLibraries(executable string) error {
	have := map[string]string{}
	for name := range t {
		have[path.Base(name)] = cmp.Or(have[path.Base(name)], name)
	}
	todo, seen := []string{executable}, map[string]bool{}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		e := t[name]
		for e.mode&fs.ModeSymlink != 0 {
			target := strings.TrimPrefix(e.target, "/")
			if target == e.target {
				target = path.Join(path.Dir(name), target)
			}
			next, ok := t[target]
			if !ok {
				return fmt.Errorf("%s is a link to %s, which no package brings", name, e.target)
			}
			name, e = target, next
		}
		f, err := elf.NewFile(bytes.NewReader(e.data))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		needed, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, library := range needed {
			if have[library] == "" {
				return fmt.Errorf("%s needs %s, which is in none of the packages", name, library)
			}
			todo = append(todo, have[library])
		}
	}
	return nil
}

// isLibrary reports whether a file is a shared library or the loader, wherever Debian puts them.
// The name service modules stay out: the static busybox would load them and end with a signal when
// they are of another build of the C library than its own.
func isLibrary(name string) bool {
	base := path.Base(name)
	return (strings.HasPrefix(name, "lib") || strings.HasPrefix(name, "usr/lib")) && strings.Contains(base, ".so") &&
		!strings.Contains(name, "/gconv/") && !strings.HasPrefix(base, "libnss_")
}
