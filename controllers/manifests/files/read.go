// Package files reads the directory "manifests" of a server, and describes its files as Manifest
// objects, whether this server leads or not.
//
// Invariants:
//   - A file counts when it is the same at two looks in a row, so that half of one is not applied.
//     The same holds for a file that has gone.
//   - What cannot be read has not gone: the server's earlier word stays.
//   - A server writes nothing while the objects say what its files are.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/barque/barque/controllers/manifests"
)

// maxFiles bounds the files of a directory.
const maxFiles = 500

// skip is the end of the name of a file that keeps another one as it is: neither changed nor
// removed.
const skip = ".skip"

// stamp tells two states of a file apart.
type stamp struct {
	size, modified int64
	inode          uint64
}

// file is a file that was found.
type file struct {
	stamp stamp
	fault error // why it cannot be applied
}

// look is what a look at the directory has found, by paths in it.
type look struct {
	files   map[string]file
	skipped map[string]bool
}

// isManifest reports whether a file is one by its name.
func isManifest(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// read looks at the directory and those below it. An error means that nothing is known.
func read(dir string) (look, error) {
	out := look{files: map[string]file{}, skipped: map[string]bool{}}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if path != dir && strings.HasPrefix(e.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if of, isSkip := strings.CutSuffix(name, skip); isSkip {
			out.skipped[of] = true
			return nil
		}
		if !isManifest(e.Name()) {
			return nil
		}
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone since, or is a link to nothing
		}
		if err != nil {
			return err
		}
		if len(out.files) >= maxFiles {
			return fmt.Errorf("there are more than %d files", maxFiles)
		}
		out.files[name] = describe(info)
		return nil
	})
	if err != nil {
		return look{}, fmt.Errorf("read the directory of manifests: %w", err)
	}
	return out, nil
}

func describe(info fs.FileInfo) file {
	f := file{stamp: stamp{size: info.Size(), modified: info.ModTime().UnixNano()}}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		f.stamp.inode = s.Ino
	}
	switch {
	case !info.Mode().IsRegular():
		f.fault = errors.New("it is no regular file")
	case info.Mode().Perm()&0o002 != 0:
		f.fault = errors.New("everybody may write it: chmod o-w")
	case info.Size() > manifests.MaxBytes:
		f.fault = fmt.Errorf("it has %d bytes; at most %d are applied: split it", info.Size(), manifests.MaxBytes)
	case info.Size() == 0:
		f.fault = errors.New("it is empty; remove it to remove what was applied")
	}
	return f
}

// NameOf returns the name of the Manifest of a path. Other characters than those of names become
// dashes, and a hash keeps such names apart.
func NameOf(path string) string {
	var b strings.Builder
	for _, r := range path {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	name := strings.Trim(b.String(), "-.")
	for strings.Contains(name, "..") || strings.Contains(name, ".-") || strings.Contains(name, "-.") {
		name = strings.NewReplacer("..", ".", ".-", ".", "-.", ".").Replace(name)
	}
	if len(name) > 200 {
		name = strings.Trim(name[:200], "-.")
	}
	if name != path {
		name += "-" + manifests.Hash([]byte(path))[:8]
	}
	return name
}
