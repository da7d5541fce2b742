package versions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/upgrade/release"
)

const (
	dirName    = "versions"
	recordName = "record.json"
	lockName   = "lock"
	format     = 1
	// mostStarts is how often a program on trial is started. The second start is for a machine that
	// lost its power during the first one.
	mostStarts = 2
)

// Dir is the folder with the programs of a node.
type Dir string

// In returns the folder in a data directory.
func In(dataDir string) Dir { return Dir(filepath.Join(dataDir, dirName)) }

// Program returns the path of the program of a version.
func (d Dir) Program(version string) string {
	return filepath.Join(string(d), version, release.Program)
}

// Record is the file that says which program counts.
type Record struct {
	Format int `json:"format"`
	// Installed is the program that the unit starts, as it was when the record was made.
	Installed *File `json:"installed,omitempty"`
	// Current is the version that counts; empty is the installed program.
	Current string `json:"current,omitempty"`
	// Before is the version that counted before; empty is the installed program.
	Before string `json:"before,omitempty"`
	Trial  *Trial `json:"trial,omitempty"`
	// Failed is the last program that was taken back.
	Failed *Failure `json:"failed,omitempty"`
}

// Trial is a program that has not proven itself.
type Trial struct {
	Version string    `json:"version"`
	Began   time.Time `json:"began"`
	// ReadySeconds is the time from a start until the node must be ready. ConfirmSeconds is the
	// time from then until it must be confirmed.
	ReadySeconds   int `json:"readySeconds"`
	ConfirmSeconds int `json:"confirmSeconds"`
	Starts         int `json:"starts"`
}

// Failure is a program that was taken back.
type Failure struct {
	Version string    `json:"version"`
	Why     string    `json:"why"`
	At      time.Time `json:"at"`
}

// File identifies a file. Size and time are compared first, as the digest takes a moment.
type File struct {
	Path     string    `json:"path"`
	Version  string    `json:"version"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	SHA256   string    `json:"sha256"`
}

// fileAt describes the program at a path.
func fileAt(path, version string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	digest, err := release.DigestOf(path)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, Version: version, Size: info.Size(), Modified: info.ModTime(), SHA256: digest}, nil
}

// is reports whether the file at the path is this one, wherever it is now.
func (f *File) is(path string) (bool, error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	if info.Size() != f.Size {
		return false, nil
	}
	if path == f.Path && info.ModTime().Equal(f.Modified) {
		return true, nil
	}
	digest, err := release.DigestOf(path)
	return digest == f.SHA256, err
}

// Read returns the record; nil if there is none.
func (d Dir) Read() (*Record, error) {
	path := filepath.Join(string(d), recordName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; remove it to start the installed program", path, err)
	}
	if r.Format != format {
		return nil, fmt.Errorf("%s has the format %d, and this program knows %d; remove it to start the installed program",
			path, r.Format, format)
	}
	return r, nil
}

// lockPatience bounds the wait for another process that changes the record, which takes no time.
const lockPatience = 10 * time.Second

// change changes the record. The function gets an empty one where there is none, and returns
// whether there is a change.
func (d Dir) change(f func(r *Record) (bool, error)) error {
	if err := atomicfile.MakeDir(string(d)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	lock, err := filelock.Acquire(ctx, filepath.Join(string(d), lockName))
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := d.Read()
	if err != nil {
		return err
	}
	if r == nil {
		r = &Record{Format: format}
	}
	changed, err := f(r)
	if err != nil || !changed {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(string(d), recordName), append(data, '\n'), 0o600)
}

// stored describes a program in the folder.
type stored struct {
	Archive string `json:"archive"` // SHA-256 of its archive
	Program string `json:"program"` // SHA-256
}

const storedName = "program.json"

// Has reports whether the folder has the program of a version from the archive with a digest. One
// that is damaged is not there: it is fetched again.
func (d Dir) Has(version, archive string) bool {
	s, err := d.stored(version)
	return err == nil && s.Archive == archive && d.checkProgram(version) == nil
}

func (d Dir) stored(version string) (s stored, err error) {
	data, err := os.ReadFile(filepath.Join(string(d), version, storedName))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// Put adds the program of a version, from an archive with a digest. check gets the path of the
// program before it counts as there. A program that was there before is replaced, unless it counts.
func (d Dir) Put(version, digest string, archive io.Reader, check func(program string) error) error {
	r, err := d.Read()
	if err != nil {
		return err
	}
	if r != nil && (r.Current == version || r.Trial != nil && r.Trial.Version == version) {
		return fmt.Errorf("this node runs another build of version %s: give this build another version", version)
	}
	if err := atomicfile.MakeDir(string(d)); err != nil {
		return err
	}
	next := filepath.Join(string(d), ".next-"+version)
	if err := errors.Join(os.RemoveAll(next), os.MkdirAll(next, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(next)
	program := filepath.Join(next, release.Program)
	if err := atomicfile.WriteFrom(program, 0o755, func(w io.Writer) error {
		return release.Extract(archive, w)
	}); err != nil {
		return err
	}
	if err := check(program); err != nil {
		return err
	}
	s := stored{Archive: digest}
	if s.Program, err = release.DigestOf(program); err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(next, storedName), data, 0o644); err != nil {
		return err
	}
	path := filepath.Join(string(d), version)
	if err := errors.Join(os.RemoveAll(path), os.Rename(next, path)); err != nil {
		return err
	}
	return atomicfile.SyncDir(string(d))
}

// checkProgram returns why the program of a version is not the one that was put there.
func (d Dir) checkProgram(version string) error {
	s, err := d.stored(version)
	if err != nil {
		return err
	}
	digest, err := release.DigestOf(d.Program(version))
	if err == nil && digest != s.Program {
		err = fmt.Errorf("%s is damaged: its SHA-256 is %s, and was %s", d.Program(version), digest, s.Program)
	}
	return err
}

// Try puts a version on trial. The process is to be started again then. It is done once for a
// version: the trial that is under way stays.
func (d Dir) Try(version string, ready, confirm time.Duration) error {
	if _, err := d.stored(version); err != nil {
		return fmt.Errorf("version %s is not there: %w", version, err)
	}
	return d.change(func(r *Record) (bool, error) {
		switch {
		case r.Trial != nil && r.Trial.Version == version, r.Trial == nil && r.Current == version:
			return false, nil
		case r.Trial != nil:
			return false, fmt.Errorf("version %s is on trial", r.Trial.Version)
		}
		if r.Installed == nil {
			path, err := os.Executable()
			if err != nil {
				return false, err
			}
			if r.Installed, err = fileAt(path, own); err != nil {
				return false, err
			}
		}
		r.Failed = nil
		r.Trial = &Trial{Version: version, Began: time.Now(), ReadySeconds: int(ready.Seconds()),
			ConfirmSeconds: int(confirm.Seconds())}
		return true, nil
	})
}

// ErrNotOnTrial is returned for a version that is not on trial any more.
var ErrNotOnTrial = errors.New("it is not on trial: it was taken back, or confirmed")

// Confirm makes the version on trial the one that counts. It may be repeated.
func (d Dir) Confirm(version string) error {
	err := d.change(func(r *Record) (bool, error) {
		switch {
		case r.Trial == nil && r.Current == version:
			return false, nil
		case r.Trial == nil || r.Trial.Version != version:
			return false, fmt.Errorf("version %s: %w", version, ErrNotOnTrial)
		}
		r.Before, r.Current, r.Trial, r.Failed = r.Current, version, nil, nil
		return true, nil
	})
	if err != nil {
		return err
	}
	return d.prune()
}

// TakeBack ends the trial of a version. It may be repeated.
func (d Dir) TakeBack(version, why string) error {
	return d.change(func(r *Record) (bool, error) {
		if r.Trial == nil || r.Trial.Version != version {
			if r.Failed != nil && r.Failed.Version == version {
				return false, nil
			}
			return false, fmt.Errorf("version %s: %w", version, ErrNotOnTrial)
		}
		r.Failed, r.Trial = &Failure{Version: version, Why: why, At: time.Now()}, nil
		return true, nil
	})
}

// prune removes the programs that neither count nor counted before.
func (d Dir) prune() error {
	r, err := d.Read()
	if err != nil || r == nil {
		return err
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return err
	}
	keep := []string{r.Current, r.Before}
	if r.Trial != nil {
		keep = append(keep, r.Trial.Version)
	}
	for _, e := range entries {
		if _, err := d.stored(e.Name()); err == nil && !slices.Contains(keep, e.Name()) {
			if err := os.RemoveAll(filepath.Join(string(d), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
