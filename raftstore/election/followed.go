package election

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
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

// learn takes the known leader, and tells whether it is another one than before. Empty is none;
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
