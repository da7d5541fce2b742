// Package damage spoils the files of a store that does not run, as disks and torn writes do.
package damage

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Kind is the kind of file of a store's directory that is spoilt.
type Kind string

// The kinds.
const (
	Log       Kind = "log"
	Snapshots Kind = "snapshots"
)

// ErrNothing is returned by Flip when there is no file of the kind.
var ErrNothing = errors.New("there is no file of the kind")

// Flip changes one to eight bytes of one file of the kind, below the store's directory. note
// describes the change.
func Flip(rnd *rand.Rand, dir string, kind Kind) (note string, err error) {
	var files []string
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && unread(d.Name()) {
			return filepath.SkipDir
		}
		if err == nil && d.Type().IsRegular() && strings.Contains(path, "/snapshots/") == (kind == Snapshots) &&
			filepath.Ext(path) != ".json" && d.Name() != "reserve" {
			if info, err := d.Info(); err == nil && info.Size() > 0 {
				files = append(files, path)
			}
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", fmt.Errorf("flip bytes of the %s in %s: %w", kind, dir, ErrNothing)
	}
	path := files[rnd.IntN(len(files))]
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	n := 1 + rnd.IntN(8)
	at := rnd.Int64N(info.Size())
	for i := range int64(n) {
		var b [1]byte
		if _, err := f.ReadAt(b[:], (at+i)%info.Size()); err != nil {
			return "", err
		}
		b[0] ^= byte(1 + rnd.IntN(255))
		if _, err := f.WriteAt(b[:], (at+i)%info.Size()); err != nil {
			return "", err
		}
	}
	rel, _ := filepath.Rel(dir, path)
	return fmt.Sprintf("%d bytes of %s at %d of %d", n, rel, at, info.Size()), nil
}

// unread reports whether a directory of that name is never read: a snapshot that was not finished,
// or was set aside.
func unread(name string) bool {
	return strings.HasSuffix(name, ".tmp") || strings.Contains(name, ".damaged")
}

// Tear leaves the bytes of a torn write, which were never synced, behind the end of the newest log
// file below the store's directory. Nothing may be lost by it, and nothing refused. note describes
// the change.
func Tear(rnd *rand.Rand, dir string) (note string, err error) {
	junk := make([]byte, 1+rnd.IntN(6000))
	for i := range junk {
		junk[i] = byte(rnd.Uint32())
	}
	path, end, err := logEnd(dir)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	_, err = f.WriteAt(junk, end)
	rel, _ := filepath.Rel(dir, path)
	return fmt.Sprintf("%d bytes after %d of %s", len(junk), end, rel), errors.Join(err, f.Close())
}

// TearSnapshot cuts the newest snapshot below the store's directory somewhere, as a disk does that
// has lost data that it acknowledged. note describes the change.
func TearSnapshot(rnd *rand.Rand, dir string) (note string, err error) {
	// others are not finished, or were set aside
	files, err := filepath.Glob(filepath.Join(dir, "snapshots", "*[0-9]", "state.bin"))
	if err != nil {
		return "", err
	}
	path, size := "", int64(0)
	var newest time.Time
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return "", err
		}
		if info.Size() > 0 && !info.ModTime().Before(newest) {
			path, size, newest = f, info.Size(), info.ModTime()
		}
	}
	if path == "" {
		return "", fmt.Errorf("cut a snapshot in %s: %w", dir, ErrNothing)
	}
	end := rnd.Int64N(size)
	rel, _ := filepath.Rel(dir, path)
	return fmt.Sprintf("%s ends at %d of %d", rel, end, size), os.Truncate(path, end)
}

// logEnd finds where the log ends: the one file of a Boltdb with its last page, the newest segment
// of a WAL, which is longer than what it holds, with the last byte that is not zero.
func logEnd(dir string) (path string, end int64, err error) {
	var newest time.Time
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		ext := filepath.Ext(p)
		if err != nil || !d.Type().IsRegular() || strings.Contains(p, "/snapshots/") ||
			ext != ".wal" && !strings.HasPrefix(filepath.Base(p), "boltdb-") {
			return err
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(newest) {
			path, newest, end = p, info.ModTime(), info.Size()
		}
		return err
	})
	if err != nil || path == "" {
		return "", 0, errors.Join(err, fmt.Errorf("there is no log in %s", dir))
	}
	if filepath.Ext(path) == ".wal" {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", 0, err
		}
		end = int64(len(strings.TrimRight(string(data), "\x00")))
		end = (end + 7) &^ 7 // frames are aligned, and may end with zeros
	}
	return path, end, nil
}
