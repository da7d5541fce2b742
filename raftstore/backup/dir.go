package backup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/writeout"
)

const (
	prefix    = "barque-"
	extension = ".backup"
)

// FileName is how a backup is called in a directory of backups: names sort by time, to the
// millisecond.
func FileName(about About) string {
	return fmt.Sprintf("%s%s-r%d%s", prefix, about.Created.UTC().Format("20060102T150405.000Z"), about.Revision,
		extension)
}

// Save lets write fill a file next to the path, syncs it, reads it back and verifies it, and only
// then renames it to the path. Without a key that opens it, it is verified by Check. On a failure
// the earlier file stays.
func Save(path string, key *Key, write func(io.Writer) error) (File, error) {
	return save(filepath.Dir(path), filepath.Base(path), key, write, func(from string, _ About) (string, error) {
		return path, os.Rename(from, path)
	})
}

// SaveIn is Save for a file in a directory that is named by its own description. It replaces none:
// of two made in the same millisecond one gets the next name. Several may be saved at the same
// time.
func SaveIn(dir string, key *Key, write func(io.Writer) error) (File, error) {
	return save(dir, prefix+"next", key, write, func(from string, a About) (string, error) {
		for {
			path := filepath.Join(dir, FileName(a))
			if err := renameNew(from, path); !errors.Is(err, fs.ErrExist) {
				return path, err
			}
			a.Created = a.Created.Add(time.Millisecond)
		}
	})
}

// save lets place give the file its name when it is whole. Until after that the file is open: see
// unfinished.go.
func save(
	dir, working string, key *Key, write func(io.Writer) error, place func(from string, a About) (string, error),
) (File, error) {
	if err := atomicfile.MakeDir(dir); err != nil {
		return File{}, fmt.Errorf("make the directory of the backups: %w", err)
	}
	_ = sweep(dir) // leftovers refuse no backup: Prune reports them
	f, err := begin(dir, working)
	if err != nil {
		return File{}, err
	}
	file, err := fill(f, key, write)
	if err == nil {
		file.Path, err = place(f.Name(), file.About)
	}
	if err != nil {
		return File{}, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	file.Name = filepath.Base(file.Path)
	return file, errors.Join(f.Close(), atomicfile.SyncDir(dir))
}

// fill writes, syncs and verifies the file.
func fill(f *os.File, key *Key, write func(io.Writer) error) (file File, err error) {
	buffered := bufio.NewWriterSize(writeout.New(f), blockSize)
	if err = write(buffered); err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		file.Size, err = f.Seek(0, io.SeekEnd)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return file, err
	}
	report, err := Verify(f, key, nil)
	if err != nil {
		return file, fmt.Errorf("what was written does not read back: %w", err)
	}
	file.About = report.About
	return file, nil
}

// File is a backup in a directory.
type File struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	Size  int64  `json:"size"`
	About About  `json:"about"`
	// Problem is the damage; empty if all its checksums are right.
	Problem string `json:"problem,omitempty"`
}

// List returns the backups in a directory, oldest first, each checked for damage. It includes all
// names with a backup's suffix, also those that people chose. A missing directory has none.
func List(dir string) ([]File, error) {
	names, err := names(dir, "")
	if err != nil {
		return nil, err
	}
	var files []File
	for _, name := range names {
		file := File{Name: name, Path: filepath.Join(dir, name)}
		if err := file.check(); err != nil {
			file.Problem = err.Error()
		}
		files = append(files, file)
	}
	slices.SortStableFunc(files, func(a, b File) int { return a.About.Created.Compare(b.About.Created) })
	return files, nil
}

func names(dir, prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), extension) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

func (file *File) check() error {
	f, err := os.Open(file.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	file.Size = info.Size()
	file.About, err = Check(bufio.NewReaderSize(f, blockSize))
	return err
}

// Prune removes the oldest backups of a directory, by their names, until keep are left, and the
// files of killed Saves. It is called after a backup was saved under the name saved, which stays in
// any case. Otherwise each new one would be removed in favour of those made while the clock was
// ahead. keep is at least 1. Backups with names that people chose stay.
func Prune(dir, saved string, keep int) error {
	err := sweep(dir)
	names, listed := names(dir, prefix)
	if listed != nil {
		return errors.Join(err, listed)
	}
	surplus := len(names) - max(keep, 1)
	for _, name := range names {
		if surplus <= 0 {
			break
		}
		if name != saved {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
			surplus--
		}
	}
	return err
}
