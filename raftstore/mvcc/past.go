package mvcc

import (
	"slices"
	"sync"

	"github.com/barque/barque/raftstore/kv"
)

// pins are snapshots of the past: those that history keeps whole, and the few computed last.
type pins struct {
	last   uint64 // revision of the newest pin; the writer's
	newest *entry // with that pin, nil when history has none; the writer's

	computing sync.Mutex // held for as long as it takes; never by the writer
	mu        sync.Mutex // guards:
	recent    []*View
	oldest    uint64 // revision at which history begins
}

const recentViews = 8

func (p *pins) reset(revision uint64) {
	p.last, p.newest = revision, nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recent, p.oldest = nil, 0
}

// forget drops the snapshots before the revision at which history begins now: no reader can ask for
// them, and each may have everything that was deleted since.
func (p *pins) forget(oldest uint64) {
	if p.newest != nil && p.newest.revision <= oldest {
		p.newest = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.oldest = oldest
	p.recent = slices.DeleteFunc(p.recent, p.tooOld)
}

func (p *pins) tooOld(v *View) bool { return v.revision < p.oldest }

// find returns the snapshot at a revision if it was computed, nil otherwise. It fails with a
// *kv.CompactedError when history has gone on: it would be computed for each reader then.
func (p *pins) find(revision uint64) (*View, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision < p.oldest {
		return nil, &kv.CompactedError{Revision: revision, Oldest: p.oldest}
	}
	if i := slices.IndexFunc(p.recent, func(v *View) bool { return v.revision == revision }); i >= 0 {
		return p.recent[i], nil
	}
	return nil, nil
}

// add keeps a snapshot that was computed, unless history has gone on meanwhile.
func (p *pins) add(v *View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tooOld(v) {
		return
	}
	if len(p.recent) == recentViews {
		p.recent = slices.Delete(p.recent, 0, 1)
	}
	p.recent = append(p.recent, v)
}

// pin keeps the newest tree with its history entry, every now and then. Only then is the cost of
// the pin before it known. The caller holds the lock of the log.
func (s *Store) pin(e *entry) {
	if e.revision-s.pins.last < s.limits.PinEvery {
		return
	}
	replaced := s.work.begin()
	if old := s.pins.newest; old != nil {
		old.pinned = replaced
		s.log.bytes += replaced
	}
	e.root = s.Latest()
	s.pins.last, s.pins.newest = e.revision, e
}

// At returns the snapshot at exactly the revision.
func (s *Store) At(revision uint64) (*View, error) {
	if latest := s.Latest(); revision == latest.revision {
		return latest, nil
	}
	s.log.mu.RLock()
	from, undo, err := s.log.undo(revision, s.Latest())
	s.log.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	if len(undo) == 0 {
		return from, nil
	}
	if v, err := s.pins.find(revision); v != nil || err != nil {
		return v, err
	}
	s.pins.computing.Lock() // readers of one page each find the snapshot that the first one makes
	defer s.pins.computing.Unlock()
	if v, err := s.pins.find(revision); v != nil || err != nil {
		return v, err
	}
	v := from.rewind(revision, undo)
	s.pins.add(v)
	return v, nil
}

// rewind takes the entries, newest first, back out of the snapshot.
func (v *View) rewind(revision uint64, undo []*entry) *View {
	past := past{tree: v.tree.thaw(), hash: v.hash}
	for _, e := range undo {
		for i := len(e.changes) - 1; i >= 0; i-- {
			past.undo(e.changes[i])
		}
	}
	return past.view(revision)
}

// past is a snapshot on its way back.
type past struct {
	tree tree
	hash uint64
}

func (p *past) undo(c change) {
	p.hash += c.before.hash() - c.after.hash()
	if c.before != "" {
		p.tree.set(c.before)
	} else {
		p.tree.delete(c.after.key())
	}
}

// view returns the snapshot as it is now.
func (p *past) view(revision uint64) *View {
	return &View{tree: p.tree.freeze(), revision: revision, hash: p.hash}
}

// HashAt returns the hash of the snapshot at exactly the revision, without making the snapshot. It
// fails as At does.
func (s *Store) HashAt(revision uint64) (uint64, error) {
	s.log.mu.RLock()
	from, undo, err := s.log.undo(revision, s.Latest())
	s.log.mu.RUnlock()
	if err != nil {
		return 0, err
	}
	hash := from.hash
	for _, e := range undo {
		for i := range e.changes {
			hash += e.changes[i].before.hash() - e.changes[i].after.hash()
		}
	}
	return hash, nil
}
