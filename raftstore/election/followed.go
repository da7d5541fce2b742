package election

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
)

// followed wakes the calls that wait for a leader's answer when another server is known to lead.
type followed struct {
	mu     sync.Mutex
	leader raft.ServerID
	over   chan struct{} // closed when another one than leader is known to lead
	lost   time.Time     // since when no leader is known; zero while one is
}

// changed returns a channel that is closed when another server is known to lead than now.
func (f *followed) changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over == nil {
		f.over = make(chan struct{})
	}
	return f.over
}

// learn takes the known leader, and reports whether it is another one than before. Empty is none;
// that does not end the waiting: the last leader may still answer.
func (f *followed) learn(leader raft.ServerID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case leader != "":
		f.lost = time.Time{}
	case f.lost.IsZero():
		f.lost = time.Now()
	}
	if leader == "" || leader == f.leader {
		return false
	}
	f.leader = leader
	if f.over != nil {
		close(f.over)
		f.over = nil
	}
	return true
}

// leaderless returns since when no leader is known; zero while one is.
func (f *followed) leaderless() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

// Follow attends one leader after the other, until ctx ends. While this server leads, it
// looks for a successor when the disk hangs.
func (e *Elector) Follow(ctx context.Context) {
	changed := make(chan raft.Observation, 1) // holds one while the leader may be another than that attended
	observer := raft.NewObserver(changed, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState: // a candidate follows no leader
			return true
		}
		return false
	})
	e.raft.RegisterObserver(observer)
	defer e.raft.DeregisterObserver(observer)
	var attending sync.WaitGroup
	stop, attended := func() {}, raft.Server{}
	var before raft.ServerID
	for ctx.Err() == nil {
		addr, id := e.leader()
		e.logLeader(before, id, addr)
		e.extendRaft(e.server.Extension(string(id)))
		before = id
		if e.followed.learn(id) {
			e.opts.Stats.Leaders.Inc()
		}
		// While no leader is known, the last one is still attended. Raft forgets it when this
		// server campaigns, which must not end that. It may lead on after an election in vain.
		if leader := (raft.Server{ID: id, Address: addr}); id != "" && leader != attended {
			stop()
			attending.Wait()
			attended = leader
			if id != e.opts.ID {
				leading, cancel := context.WithCancel(ctx)
				stop = cancel
				attending.Go(func() { e.attend(leading, leader) }) // ends with leading
			}
		}
		select {
		case <-changed:
		case <-e.hung:
			e.nominate(ctx)
		case <-ctx.Done():
		}
	}
	stop()
	attending.Wait()
}

// logLeader logs which server this one follows from now on. Its own terms are logged elsewhere.
func (e *Elector) logLeader(before, now raft.ServerID, addr raft.ServerAddress) {
	self := e.opts.ID
	switch log := e.opts.Logger.With("term", e.raft.CurrentTerm()); {
	case before == now || now == self || now == "" && before == self:
	case now != "":
		e.history.leads(e.raft.CurrentTerm(), string(now), "")
		_, at := peer.SplitDestination(string(addr))
		log.Info("this server follows another one", "leader", now, "address", at)
	default:
		heard, why := "never", group.NameOf(string(before))+" was never heard of"
		if last := e.raft.LastContact(); !last.IsZero() {
			silent := time.Since(last)
			heard, why = silent.Round(time.Millisecond).String()+" ago", e.whyLost(group.NameOf(string(before)), silent)
		}
		e.history.lost(e.raft.CurrentTerm(), string(before), why)
		log.Info("this server has no leader any more", "leader", before, "heard", heard)
	}
}
