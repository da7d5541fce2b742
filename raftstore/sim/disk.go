package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore"
)

var (
	errIO   = errors.New("input/output error")
	errFull = errors.New("no space left on device")
)

// disk is the state that a server keeps when it crashes: all synced writes, and of the write that
// was under way any part of its front.
type disk struct {
	mu      sync.Mutex
	rnd     *rand.Rand
	kept    *platter
	mounted *mount // by the process that runs; nil after a crash

	slow  time.Duration // each write takes up to this
	hung  chan struct{} // closed when the hang is over; nil: no hang
	fails error         // of writes, errIO or errFull
}

// platter is content. Entries are shared and never changed.
type platter struct {
	low, high uint64
	logs      map[uint64]*raft.Log
	text      map[string][]byte
	numbers   map[string]uint64
	snapshots []*kept // newest first
}

type kept struct {
	meta raft.SnapshotMeta
	data []byte
}

func newDisk(seed1, seed2 uint64) *disk {
	return &disk{rnd: rand.New(rand.NewPCG(seed1, seed2)), kept: newPlatter()}
}

func newPlatter() *platter {
	return &platter{logs: make(map[uint64]*raft.Log), text: make(map[string][]byte), numbers: make(map[string]uint64)}
}

func (p *platter) clone() *platter {
	return &platter{p.low, p.high, maps.Clone(p.logs), maps.Clone(p.text), maps.Clone(p.numbers),
		slices.Clone(p.snapshots)}
}

func (p *platter) store(entries []*raft.Log) {
	for _, e := range entries {
		p.logs[e.Index] = e
		if p.low == 0 {
			p.low = e.Index
		}
		p.high = max(p.high, e.Index)
	}
}

// forget takes the newest entries away.
func (p *platter) forget(n int) {
	for ; n > 0 && p.high > p.low; n-- {
		delete(p.logs, p.high)
		p.high--
	}
}

// mount is a disk as one process has it. After a crash the process goes on, unseen, with a copy of
// its own.
type mount struct {
	disk      *disk
	own       *platter
	dead      chan struct{}         // closed by crash
	writing   map[*[]*raft.Log]bool // entries that are under way
	onTermErr func()                // the process dies when it cannot keep its term
	forgets   int                   // how many synced entries a crash takes, too: for tests of the checks
}

var _ raftstore.LogStore = (*mount)(nil)

// open returns the disk for a process that starts.
func (d *disk) open(onTermErr func()) *mount {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mounted = &mount{disk: d, own: d.kept, dead: make(chan struct{}), writing: make(map[*[]*raft.Log]bool),
		onTermErr: onTermErr}
	return d.mounted
}

// crash takes the disk from the process that runs.
func (d *disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.mounted
	if m == nil {
		return
	}
	d.mounted, d.kept = nil, m.own.clone()
	d.kept.forget(m.forgets)
	for entries := range m.writing {
		d.kept.store((*entries)[:d.rnd.IntN(len(*entries)+1)])
	}
	close(m.dead)
}

// set changes how the disk behaves, and ends a hang.
func (d *disk) set(slow time.Duration, hangs bool, fails error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
	if d.slow, d.fails = slow, fails; hangs {
		d.hung = make(chan struct{})
	}
}

// write waits as long as a write takes, and then makes it.
func (m *mount) write(do func(p *platter) error) error {
	d := m.disk
	d.mu.Lock()
	hung, takes, fails := d.hung, time.Duration(0), d.fails
	if d.slow > 0 {
		takes = time.Duration(d.rnd.Int64N(int64(d.slow)))
	}
	d.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-m.dead:
		}
	}
	if takes > 0 {
		select {
		case <-time.After(takes):
		case <-m.dead:
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if fails != nil && d.mounted == m {
		return fails
	}
	return do(m.own)
}

// FirstIndex implements raft.LogStore.
func (m *mount) FirstIndex() (uint64, error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.own.low, nil
}

// LastIndex implements raft.LogStore.
func (m *mount) LastIndex() (uint64, error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.own.high, nil
}

// GetLog implements raft.LogStore.
func (m *mount) GetLog(index uint64, entry *raft.Log) error {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	found, ok := m.own.logs[index]
	if !ok {
		return raft.ErrLogNotFound
	}
	*entry = *found
	return nil
}

// StoreLog implements raft.LogStore.
func (m *mount) StoreLog(entry *raft.Log) error { return m.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (m *mount) StoreLogs(entries []*raft.Log) error {
	stored := make([]*raft.Log, len(entries)) // Raft may use its own again
	for i, e := range entries {
		c := *e
		stored[i] = &c
	}
	m.disk.mu.Lock()
	m.writing[&stored] = true
	m.disk.mu.Unlock()
	defer func() {
		m.disk.mu.Lock()
		delete(m.writing, &stored)
		m.disk.mu.Unlock()
	}()
	return m.write(func(p *platter) error {
		delete(m.writing, &stored) // before any caller can see it done
		p.store(stored)
		return nil
	})
}

// DeleteRange implements raft.LogStore. It also works when the disk is full.
func (m *mount) DeleteRange(first, last uint64) error {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	p := m.own
	for i := first; i <= last; i++ {
		delete(p.logs, i)
	}
	if first <= p.low {
		p.low = last + 1
	}
	if last >= p.high {
		p.high = first - 1
	}
	if p.low > p.high {
		p.low, p.high = 0, 0
	}
	return nil
}

// Set implements raft.StableStore.
func (m *mount) Set(key, value []byte) error {
	return m.write(func(p *platter) error {
		p.text[string(key)] = bytes.Clone(value)
		return nil
	})
}

// SetUint64 implements raft.StableStore. Raft's process ends when it cannot keep its term.
func (m *mount) SetUint64(key []byte, value uint64) error {
	err := m.write(func(p *platter) error {
		p.numbers[string(key)] = value
		return nil
	})
	if err != nil && string(key) == "CurrentTerm" {
		m.onTermErr()
		m.disk.mu.Lock()
		defer m.disk.mu.Unlock()
		m.own.numbers[string(key)] = value // in the copy of the dead
		return nil
	}
	return err
}

// Get implements raft.StableStore.
func (m *mount) Get(key []byte) ([]byte, error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if v, ok := m.own.text[string(key)]; ok {
		return v, nil
	}
	return nil, errors.New("not found")
}

// GetUint64 implements raft.StableStore.
func (m *mount) GetUint64(key []byte) (uint64, error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	return m.own.numbers[string(key)], nil
}

// Close implements raftstore.LogStore. It keeps the state that a crash keeps.
func (m *mount) Close() error {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	if m.disk.mounted == m {
		m.disk.mounted, m.disk.kept = nil, m.own.clone()
		close(m.dead)
	}
	return nil
}

// snapshots is a raft.SnapshotStore on a disk.
type snapshots struct {
	mount *mount
	point func(name string) // called in the middle of a snapshot
}

// keptSnapshots is how many a disk keeps.
const keptSnapshots = 2

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(
	version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64,
	_ raft.Transport,
) (raft.SnapshotSink, error) {
	sink := &sink{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixMilli()), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}
	return sink, s.mount.write(func(*platter) error { return nil })
}

// List implements raft.SnapshotStore.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mount.disk.mu.Lock()
	defer s.mount.disk.mu.Unlock()
	var metas []*raft.SnapshotMeta
	for _, k := range s.mount.own.snapshots {
		meta := k.meta
		metas = append(metas, &meta)
	}
	return metas, nil
}

// Open implements raft.SnapshotStore.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mount.disk.mu.Lock()
	defer s.mount.disk.mu.Unlock()
	for _, k := range s.mount.own.snapshots {
		if k.meta.ID == id {
			meta := k.meta
			return &meta, io.NopCloser(bytes.NewReader(k.data)), nil
		}
	}
	return nil, nil, fmt.Errorf("there is no snapshot %s", id)
}

type sink struct {
	store *snapshots
	meta  raft.SnapshotMeta
	data  bytes.Buffer
	done  bool
}

func (s *sink) ID() string    { return s.meta.ID }
func (s *sink) Cancel() error { s.done = true; return nil }

func (s *sink) Write(p []byte) (int, error) {
	if err := s.store.mount.write(func(*platter) error { return nil }); err != nil {
		return 0, err
	}
	return s.data.Write(p)
}

func (s *sink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	s.store.point(pointSnapshot)
	s.meta.Size = int64(s.data.Len())
	return s.store.mount.write(func(p *platter) error {
		p.snapshots = slices.Insert(p.snapshots, 0, &kept{s.meta, s.data.Bytes()})
		slices.SortStableFunc(p.snapshots, func(a, b *kept) int { return int(b.meta.Index) - int(a.meta.Index) })
		p.snapshots = p.snapshots[:min(len(p.snapshots), keptSnapshots)]
		return nil
	})
}
