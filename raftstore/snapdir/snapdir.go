// Package snapdir keeps Raft's snapshots in a directory. Each has its own directory, with the state
// and Raft's metadata.
//
//	<term>-<index>-<milliseconds>/state.bin   the state, in the format of package snapshot
//	<term>-<index>-<milliseconds>/meta.json   index, term and members, with a checksum
//	….tmp                                     one that is being written, or was when the process died
//	….damaged                                 one that was unreadable at a start
//
// Invariants:
//
//   - a listed snapshot was complete and on disk before it got its name;
//   - a failed one leaves nothing behind: on a full disk that matters;
//   - the newest Options.Keep ones stay.
//
// It does not verify the state: the reader does.
package snapdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/snapshot"
)

const (
	stateFile = "state.bin"
	metaFile  = "meta.json"
	temporary = ".tmp"
	damaged   = ".damaged"
	// metaFormat is the newest format of meta.json that this program supports.
	metaFormat = 1
)

// Options of a Store.
type Options struct {
	Dir string
	// Keep is how many snapshots stay.
	Keep int
	// Done is called, before the log is cut, with the last entry of a snapshot that is on disk now.
	// It may be nil.
	Done func(index uint64) error
	// Full is called when a snapshot fails because the disk has no room. It may be nil.
	Full   func()
	Logger *slog.Logger
	Fault  faultpoint.Func // for tests; may be nil
}

// Store implements raft.SnapshotStore.
type Store struct {
	opts     Options
	readFile func(name string) ([]byte, error) // os.ReadFile; tests put another one in its place

	mu sync.Mutex // guards the names in the directory

	writing sync.Mutex // guards:
	open    map[*sink]struct{}
}

// meta is the contents of metaFile.
type meta struct {
	Format int             `json:"format"`
	Sum    string          `json:"sum"` // over Meta
	Meta   json.RawMessage `json:"meta"`
}

// Open opens the directory, or makes it, and removes unfinished snapshots.
func Open(opts Options) (*Store, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Keep < 1 {
		return nil, errors.New("snapdir: at least one snapshot stays")
	}
	if err := atomicfile.MakeDir(opts.Dir); err != nil {
		return nil, fmt.Errorf("make the directory of the snapshots: %w", err)
	}
	s := &Store{opts: opts, readFile: os.ReadFile, open: make(map[*sink]struct{})}
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, temporary) {
			if err := os.RemoveAll(s.path(name)); err != nil {
				return nil, fmt.Errorf("remove a snapshot that was not finished: %w", err)
			}
		}
	}
	return s, nil
}

func (s *Store) path(id string) string { return filepath.Join(s.opts.Dir, id) }

// Path returns where the state of a snapshot is.
func (s *Store) Path(id string) string { return filepath.Join(s.path(id), stateFile) }

func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// ErrVersion is returned for a snapshot that a newer program wrote.
var ErrVersion = errors.New("the snapshot is of an unknown version: a newer program wrote it; run that version")

// Damaged reports whether an error in reading a snapshot means that it is damaged. Otherwise the
// process is the cause, such as too many open files or a program that is too old: the snapshot must
// stay.
func Damaged(err error) bool {
	for _, other := range []error{ErrVersion, snapshot.ErrVersion, fs.ErrPermission, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOMEM} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// List implements raft.SnapshotStore: the newest one is first. One with damaged metadata is set
// aside.
func (s *Store) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var all []*raft.SnapshotMeta
	for _, name := range names {
		if strings.HasSuffix(name, temporary) || strings.HasSuffix(name, damaged) {
			continue
		}
		m, err := s.readMeta(name)
		if err != nil && !Damaged(err) {
			return nil, fmt.Errorf("read about the snapshot %s: %w", s.path(name), err)
		}
		if err != nil {
			s.setAside(name, err)
			continue
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *raft.SnapshotMeta) int { return -compare(a, b) })
	return all, nil
}

// compare orders snapshots by how new their state is, and then by when they were taken.
func compare(a, b *raft.SnapshotMeta) int {
	switch {
	case a.Index != b.Index:
		return int(max(-1, min(1, int64(a.Index)-int64(b.Index))))
	case a.Term != b.Term:
		return int(max(-1, min(1, int64(a.Term)-int64(b.Term))))
	}
	return strings.Compare(a.ID, b.ID)
}

func (s *Store) readMeta(id string) (*raft.SnapshotMeta, error) {
	data, err := s.readFile(filepath.Join(s.path(id), metaFile))
	if err != nil {
		return nil, err
	}
	var outer meta
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFile, err)
	}
	if outer.Sum != sum(outer.Meta) {
		return nil, fmt.Errorf("%s: the checksum differs", metaFile)
	}
	if outer.Format != metaFormat {
		return nil,
			fmt.Errorf("%w: %s has format %d and this program knows %d", ErrVersion, metaFile, outer.Format, metaFormat)
	}
	m := new(raft.SnapshotMeta)
	if err := json.Unmarshal(outer.Meta, m); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFile, err)
	}
	if m.ID != id {
		return nil, fmt.Errorf("%s is of the snapshot %s", metaFile, m.ID)
	}
	return m, nil
}

func sum(data []byte) string { return fmt.Sprintf("%016x", xxhash.Sum64(data)) }

// Open implements raft.SnapshotStore.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, err := s.readMeta(id)
	if err != nil {
		return nil, nil, fmt.Errorf("open the snapshot %s: %w", s.path(id), err)
	}
	file, err := os.Open(s.Path(id))
	if err != nil {
		return nil, nil, fmt.Errorf("open a snapshot: %w", err)
	}
	info, err := file.Stat()
	if err == nil && info.Size() != m.Size {
		err = fmt.Errorf("%s has %d bytes and should have %d", s.Path(id), info.Size(), m.Size)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return m, file, nil
}

// SetAside removes an unreadable snapshot from the list. Its files stay until there are as many
// newer ones as are kept.
func (s *Store) SetAside(id string, why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setAside(id, why)
}

func (s *Store) setAside(id string, why error) error {
	to := s.path(id) + damaged
	err := os.RemoveAll(to)
	if err == nil {
		err = os.Rename(s.path(id), to)
	}
	if err == nil {
		err = atomicfile.SyncDir(s.opts.Dir)
	}
	s.opts.Logger.Error("a snapshot is damaged and was set aside", "snapshot", s.path(id), "reason", why, "now", to,
		"err", err)
	return err
}

// Create implements raft.SnapshotStore.
func (s *Store) Create(
	version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("snapshots of version %d are not known", version)
	}
	id := fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixMilli())
	k := &sink{store: s, dir: s.path(id) + temporary, meta: raft.SnapshotMeta{
		Version: version, ID: id, Index: index, Term: term, Configuration: members, ConfigurationIndex: membersIndex,
	}}
	if err := s.begin(k); err != nil {
		return nil, s.failed(k.dir, fmt.Errorf("begin a snapshot: %w", err))
	}
	return k, nil
}

// begin makes the directory of a snapshot that is about to be written.
func (s *Store) begin(k *sink) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := k.begin()
	if err == nil {
		s.open[k] = struct{}{}
	}
	return err
}

// ErrAbandoned is returned for a snapshot whose space was needed for something else.
var ErrAbandoned = errors.New("the snapshot was abandoned: the room that it took was needed")

// Abandon frees, at once, the space of the snapshots in progress. These fail. It returns whether
// one had taken any.
func (s *Store) Abandon() bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	freed := false
	for k := range s.open {
		freed = k.abandon() || freed
	}
	return freed
}

// ended removes a sink from the list of those that can be abandoned.
func (s *Store) ended(k *sink) {
	s.writing.Lock()
	defer s.writing.Unlock()
	delete(s.open, k)
}

// failed removes the files of a snapshot, and returns the reason.
func (s *Store) failed(dir string, err error) error {
	return errors.Join(err, s.discard(dir, err))
}

// discard removes the files of a failed snapshot. It returns and logs a failure of that, since Raft
// does not; the next snapshot tries again.
func (s *Store) discard(dir string, why error) error {
	err := os.RemoveAll(dir)
	if err != nil {
		s.opts.Logger.Warn("cannot remove what there is of a snapshot that failed", "dir", dir, "err", err)
	}
	if (isFull(why) || isFull(err)) && s.opts.Full != nil {
		s.opts.Full()
	}
	return err
}

// adopt gives a snapshot that is on disk its name.
func (s *Store) adopt(k *sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Rename(k.dir, s.path(k.meta.ID)); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(s.opts.Dir); err != nil {
		return err
	}
	if s.opts.Done != nil {
		return s.opts.Done(k.meta.Index)
	}
	return nil
}

// reap removes old snapshots, and the files of failed ones.
func (s *Store) reap() {
	all, err := s.List()
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		var names []string
		names, err = s.names()
		for _, name := range names {
			switch kept := slices.ContainsFunc(all[:min(s.opts.Keep, len(all))],
				func(m *raft.SnapshotMeta) bool { return m.ID == name }); {
			case strings.HasSuffix(name, temporary):
				err = errors.Join(err, s.reapUnfinished(s.path(name)))
			case !kept && len(all) >= s.opts.Keep:
				err = errors.Join(err, os.RemoveAll(s.path(name)))
			}
		}
	}
	if err != nil {
		s.opts.Logger.Warn("cannot remove old snapshots", "err", err)
	}
}

// DropOlder removes the snapshots before one, and also damaged ones and the rest of failed ones.
// That one stays, and so does whatever is newer by its name, also if its metadata cannot be read.
// If the process is the cause that a snapshot cannot be read, nothing is removed: see Damaged.
func (s *Store) DropOlder(than *raft.SnapshotMeta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, err := s.names()
	if err != nil {
		return err
	}
	var old, unfinished []string
	for _, name := range names {
		if strings.HasSuffix(name, temporary) {
			unfinished = append(unfinished, name)
			continue
		}
		id := strings.TrimSuffix(name, damaged)
		if id == than.ID || compare(named(id), than) > 0 {
			continue
		}
		if id == name {
			m, err := s.readMeta(name)
			if err != nil && !Damaged(err) {
				return fmt.Errorf("read about the snapshot %s: %w; no old snapshot was removed", s.path(name), err)
			}
			if err == nil && compare(m, than) >= 0 {
				continue
			}
		}
		old = append(old, name)
	}
	for _, name := range unfinished {
		err = errors.Join(err, s.reapUnfinished(s.path(name)))
	}
	for _, name := range old {
		err = errors.Join(err, os.RemoveAll(s.path(name)))
	}
	if err != nil {
		return fmt.Errorf("remove old snapshots: %w", err)
	}
	return nil
}

// named returns the description in the name of a snapshot, zeros if it is no such name.
func named(id string) *raft.SnapshotMeta {
	m := &raft.SnapshotMeta{ID: id}
	if n, err := fmt.Sscanf(id, "%d-%d-", &m.Term, &m.Index); n != 2 || err != nil {
		m.Term, m.Index = 0, 0
	}
	return m
}

// reapUnfinished removes the rest of a snapshot without a writer.
func (s *Store) reapUnfinished(dir string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	for k := range s.open {
		if k.dir == dir {
			return nil
		}
	}
	return os.RemoveAll(dir)
}
