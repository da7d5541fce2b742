package election

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
)

// followed wakes the calls that wait for a leader's answer when another server is known to lead.
type followed struct {
	mu     sync.Mutex
	leader raft.ServerID
	over   chan struct{} // closed when another one than leader is known to lead
	lost   time.Time     // since when no leader is known; zero while one is
	count  prometheus.Counter
}

// changed returns a channel that is closed when another server than leader is known to lead. The
// caller has read leader from Raft, which can know of a change before this does: known is Raft's
// word. So the late notice of a change does not end the calls to the leader that it is about.
func (f *followed) changed(leader raft.ServerID, known func() raft.ServerID) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if leader != "" && leader != f.leader {
		switch now := known(); now {
		case leader:
			f.follow(leader)
		case "": // nobody is known: the last leader may still answer
		default:
			over := make(chan struct{})
			close(over)
			return over
		}
	}
	if f.over == nil {
		f.over = make(chan struct{})
	}
	return f.over
}

// learn takes the known leader. Empty is none; that does not end the waiting: the last leader may
// still answer.
func (f *followed) learn(known func() raft.ServerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	leader := known()
	switch {
	case leader != "":
		f.lost = time.Time{}
	case f.lost.IsZero():
		f.lost = time.Now()
	}
	if leader != "" && leader != f.leader {
		f.follow(leader)
	}
}

// follow wakes the calls to the leader before. The caller holds the mutex.
func (f *followed) follow(leader raft.ServerID) {
	f.leader = leader
	f.count.Inc()
	if f.over != nil {
		close(f.over)
		f.over = nil
	}
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
		var addr raft.ServerAddress
		var id raft.ServerID
		e.followed.learn(func() raft.ServerID {
			addr, id = e.leader()
			return id
		})
		e.logLeader(before, id, addr)
		e.extendRaft(e.server.Extension(string(id)))
		before = id
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
			e.history.lastSign(last)
			silent := time.Since(last)
			heard, why = silent.Round(time.Millisecond).String()+" ago", e.whyLost(group.NameOf(string(before)), silent)
		}
		e.history.lost(e.raft.CurrentTerm(), string(before), why)
		log.Info("this server has no leader any more", "leader", before, "heard", heard)
	}
}
