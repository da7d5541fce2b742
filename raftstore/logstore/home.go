package logstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/barque/barque/internal/atomicfile"
)

const (
	recordFile = "log.json"
	markFile   = "mark"
	// homeFormat is the newest layout of the directory that this program supports.
	homeFormat = 1
)

// record describes the directory. It is replaced atomically, and files that it does not name are
// not the log. A new log is made beside the old one, and becomes the log with the record. So a
// crash at any moment leaves one whole log, and leftovers that the next start removes.
type record struct {
	Format     int    `json:"format"`
	Kind       Kind   `json:"kind"`
	Generation uint64 `json:"generation"` // of the log: part of its name
	Sum        string `json:"sum"`        // over the others: files that the record does not name are removed
}

func (r record) sum() string {
	return fmt.Sprintf("%016x", xxhash.Sum64String(fmt.Sprintf("%d %s %d", r.Format, r.Kind, r.Generation)))
}

// home is the directory of a log. One process at a time has it: the caller that opens a log ensures
// that.
//
//	log.json   the record
//	mark   what was promised
//	boltdb-1 or wal-1   the log itself, a file or a directory
type home struct {
	dir   string
	rec   record
	tried atomic.Uint64                                          // newest generation that was begun
	put   func(path string, data []byte, mode os.FileMode) error // atomicfile.Write, but for tests
}

func (r record) name() string { return fmt.Sprintf("%s-%d", r.Kind, r.Generation) }

// next returns the record of a new log. Each has a unique name, also if two are made at a time.
func (h *home) next(kind Kind) record { return record{Kind: kind, Generation: h.tried.Add(1)} }

func (h *home) path(r record) string { return filepath.Join(h.dir, r.name()) }

// openHome reads the record of a directory, which is empty without one.
func openHome(dir string) (*home, error) {
	if err := atomicfile.MakeDir(dir); err != nil {
		return nil, fmt.Errorf("make the directory of the log: %w", err)
	}
	h := &home{dir: dir, put: atomicfile.Write}
	if err := errors.Join(h.readRecord(), atomicfile.Sweep(filepath.Join(dir, recordFile))); err != nil {
		return nil, err
	}
	h.tried.Store(h.rec.Generation)
	return h, h.sweep()
}

func (h *home) readRecord() error {
	path := filepath.Join(h.dir, recordFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what kind of log is in %s: %w", h.dir, err)
	}
	if err := json.Unmarshal(data, &h.rec); err != nil {
		return corrupt(path, "", "%w", err)
	}
	if h.rec.Sum != h.rec.sum() {
		return corrupt(path, "", "%w", errSum)
	}
	if h.rec.Format > homeFormat {
		return fmt.Errorf(
			"%s has format %d and this program knows up to %d: a newer version wrote it; run that version",
			path, h.rec.Format, homeFormat)
	}
	if _, err := ParseKind(string(h.rec.Kind)); err != nil || h.rec.Generation == 0 {
		return corrupt(path, "", "it names a log of kind %q, generation %d", h.rec.Kind, h.rec.Generation)
	}
	if _, err := os.Stat(h.path(h.rec)); err != nil {
		return corrupt(h.path(h.rec), "", "%w", err)
	}
	return nil
}

// KindIn returns the kind of the log in a directory of a stopped process.
func KindIn(dir string) (Kind, error) {
	h := &home{dir: dir}
	if err := h.readRecord(); err != nil {
		return "", err
	}
	if h.rec.Generation == 0 {
		return "", fmt.Errorf("there is no log in %s", dir)
	}
	return h.rec.Kind, nil
}

// sweep removes leftovers: unfinished logs of a crash, and the previous log.
func (h *home) sweep() error {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", h.dir, err)
	}
	for _, e := range entries {
		name := e.Name()
		ours := strings.HasPrefix(name, string(Boltdb)+"-") || strings.HasPrefix(name, string(WAL)+"-")
		if !ours || h.rec.Generation > 0 && name == h.rec.name() {
			continue
		}
		if err := os.RemoveAll(filepath.Join(h.dir, name)); err != nil {
			return fmt.Errorf("remove what is left of another log: %w", err)
		}
	}
	return nil
}

// adopt makes a log that is complete, and on disk, the log of this directory. The one before is
// rubbish now.
func (h *home) adopt(next record) error {
	next.Format = homeFormat
	next.Sum = next.sum()
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.SyncDir(h.dir); err != nil {
		return err
	}
	if err := h.put(filepath.Join(h.dir, recordFile), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write what kind of log is in %s: %w", h.dir, err)
	}
	h.rec = next
	return nil
}

// isCurrent returns whether the record on disk is the one in use, after it could not be
// replaced.
func (h *home) isCurrent() bool {
	now := &home{dir: h.dir}
	return now.readRecord() == nil && now.rec == h.rec
}
