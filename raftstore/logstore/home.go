package logstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

const (
	recordFile = "log.json"
	markFile   = "mark"
	lockFile   = "LOCK"
	// homeFormat is the newest layout of the directory that this program knows.
	homeFormat = 1
	// lockWait bounds how long it waits for another process that has the log open.
	lockWait = 5 * time.Second
)

// record says what the directory holds. It is replaced as a whole, and what it does not name is not the log:
// a new log is made beside the old one, and becomes the log with the record. So a crash at any moment leaves
// one whole log, and rubbish that the next start removes.
type record struct {
	Format     int    `json:"format"`
	Kind       Kind   `json:"kind"`
	Generation uint64 `json:"generation"` // of the log: part of its name
	Sum        string `json:"sum"`        // over the others: what the record does not name is removed
}

func (r record) sum() string {
	return fmt.Sprintf("%016x", xxhash.Sum64String(fmt.Sprintf("%d %s %d", r.Format, r.Kind, r.Generation)))
}

// home is the directory of a log.
//
//	LOCK   held by the process that has it open
//	log.json   the record
//	mark   what was promised
//	boltdb-1 or wal-1   the log itself, a file or a directory
type home struct {
	dir  string
	lock *os.File
	rec  record
}

func (r record) name() string { return fmt.Sprintf("%s-%d", r.Kind, r.Generation) }

func (h *home) path(r record) string { return filepath.Join(h.dir, r.name()) }

// openHome locks the directory and reads its record, which is empty when there is none.
func openHome(dir string) (*home, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the log: %w", err)
	}
	h := &home{dir: dir}
	var err error
	if h.lock, err = lock(filepath.Join(dir, lockFile)); err != nil {
		return nil, err
	}
	if err = h.readRecord(); err == nil {
		err = h.sweep()
	}
	if err != nil {
		h.lock.Close()
		return nil, err
	}
	return h, nil
}

func lock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the log: %w", err)
	}
	for end := time.Now().Add(lockWait); ; <-time.After(50 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w: another process has this log open; stop it first", path, err)
		}
	}
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
		return fmt.Errorf("%s has format %d and this program knows up to %d: a newer version wrote it; run that version",
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

// KindIn returns the kind of the log that a directory has, which is none of a process that runs.
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

// sweep removes what is not the log: what a crash left of one that was being made, or of the one before.
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

// adopt makes a log that is complete, and on disk, the log of this directory. The one before is rubbish now.
func (h *home) adopt(next record) error {
	next.Format = homeFormat
	next.Sum = next.sum()
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := syncDir(h.dir); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(h.dir, recordFile), append(data, '\n')); err != nil {
		return fmt.Errorf("write what kind of log is in %s: %w", h.dir, err)
	}
	h.rec = next
	return nil
}

// stands returns whether the record on disk is the one that is in use, after it could not be replaced.
func (h *home) stands() bool {
	now := &home{dir: h.dir}
	return now.readRecord() == nil && now.rec == h.rec
}

func (h *home) close() error { return h.lock.Close() } // which gives the lock up

// writeFile puts a file in place so that after a crash it is there as a whole or not at all.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
