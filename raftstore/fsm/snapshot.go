package fsm

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/snapshot"
)

// historyBytes bounds the history in a snapshot, in memory. The history serves clients that come
// back after a restart, or whose server got a snapshot. The bound keeps snapshots small.
const historyBytes = 16 << 20

// OmitHistory makes snapshots without history while a disk is short of space. History has the
// deleted and replaced items, so it is as large as the deletions that were to make space. Watchers
// that come back after a restart list again then. It is called before the machine is used.
func (f *FSM) OmitHistory(while func() bool) { f.omitHistory = while }

// Snapshot takes a snapshot of the state. It costs a pointer; writing continues meanwhile.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	if f.halted != nil {
		return nil, fmt.Errorf("no snapshot of a machine that has halted: %w", f.halted)
	}
	view, history := f.state.Latest(), historyBytes
	if f.omitHistory != nil && f.omitHistory() {
		history = 0
	}
	return &stateSnapshot{view: view, history: f.state.History(history), sessions: f.sessions.save(),
		staging: f.state.FreezeStaging(), meta: snapshot.Meta{
			Index: f.index, Term: f.term, Revision: view.Revision(), Now: f.state.Now(),
			Hash: view.Hash(), Items: uint64(view.Len()),
		}}, nil
}

// stateSnapshot is one moment of the state. It implements raft.FSMSnapshot.
type stateSnapshot struct {
	view     *mvcc.View
	meta     snapshot.Meta
	history  func(yield func(kv.Undo) bool)
	sessions []snapshot.Session
	staging  *mvcc.Staging // nil when no restore is under way
}

func (p *stateSnapshot) write(w io.Writer) error {
	source := snapshot.Source{
		Meta:     p.meta,
		Items:    func(yield func(kv.Item) bool) { p.view.Ascend("", "", yield) },
		History:  p.history,
		Sessions: p.sessions,
	}
	if st := p.staging; st != nil {
		source.Staging = &snapshot.Staging{ID: st.ID, Seq: st.Seq, Sum: st.Sum, Bytes: st.Bytes, Touched: st.Touched,
			Items: st.Items}
		source.Staged = st.Ascend
	}
	return snapshot.Write(w, source)
}

// Persist implements raft.FSMSnapshot.
func (p *stateSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := p.write(sink); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (p *stateSnapshot) Release() {}

// Restore replaces the state by a snapshot, after all of it has been verified. It implements
// raft.FSM.
func (f *FSM) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	r, err := snapshot.NewReader(rc)
	if err != nil {
		return err
	}
	defer r.Close()
	meta := r.Meta()
	var (
		sessions []snapshot.Session
		under    *snapshot.Staging
		staging  = new(mvcc.Staging)
	)
	err = f.state.Load(mvcc.Origin{Revision: meta.Revision, Now: meta.Now, Hash: meta.Hash}, r.Items,
		func(yield func(kv.Undo) error) (err error) {
			if err = r.History(yield); err == nil {
				// Until here nothing in the file can be trusted.
				sessions, under, err = r.Rest(func(item *kv.Item) { f.state.LoadStaged(staging, item) })
			}
			return err
		})
	if err != nil {
		return err
	}
	if under != nil {
		staging.ID, staging.Seq, staging.Touched = under.ID, under.Seq, under.Touched
		f.state.SetStaging(staging)
	}
	f.sessions = restoreSessions(sessions)
	f.index, f.term = meta.Index, meta.Term
	f.latest.Store(&Position{Index: f.index, Term: f.term})
	f.applied.reach(f.index)
	return nil
}

// save copies the sessions, in their order.
func (s *sessions) save() []snapshot.Session {
	saved := make([]snapshot.Session, 0, len(s.order))
	for _, session := range s.order {
		out := snapshot.Session{Origin: session.origin, Done: session.done, Seen: session.seen}
		for seq, revision := range session.answers {
			out.Answers = append(out.Answers, snapshot.Answer{Seq: seq, Revision: revision})
		}
		slices.SortFunc(out.Answers, func(a, b snapshot.Answer) int { return cmp.Compare(a.Seq, b.Seq) })
		saved = append(saved, out)
	}
	return saved
}

func restoreSessions(saved []snapshot.Session) *sessions {
	s := newSessions()
	for i := range saved {
		session := &session{
			origin: saved[i].Origin, done: saved[i].Done, seen: saved[i].Seen,
			answers: make(map[uint64]uint64, len(saved[i].Answers)),
		}
		for _, a := range saved[i].Answers {
			session.answers[a.Seq] = a.Revision
		}
		s.add(session)
	}
	return s
}
