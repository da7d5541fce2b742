package raftfix

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// lease is Raft's transport. It extends the lease of a leader.
//
// Raft (1.8.0) gives leadership up when a quorum has answered nothing for LeaderLeaseTimeout. That
// cannot be changed while Raft runs, and a longer one in general needs rarer heartbeats. But
// followers that are short of CPU answer late. So while there is an extension for a follower, its
// heartbeats do not wait long for their answers. They count as answered while the follower has
// answered any within the extended lease. Raft needs the answer to a heartbeat for nothing else:
// this program does not use VerifyLeader.
//
// Without an extension all messages pass unchanged.
type lease struct {
	Transport
	length    time.Duration
	extension func(id raft.ServerID) time.Duration

	mu        sync.Mutex
	followers map[raft.ServerID]*answers
	asking    sync.WaitGroup
}

// answers are those of a follower to heartbeats of one term.
type answers struct {
	term   uint64
	last   time.Time     // when the last one came; at first the first heartbeat counts as answered, as for Raft
	asked  chan struct{} // closed with the end of the heartbeat under way; nil without one
	failed error         // of the last heartbeat that has ended
}

// errNoAnswer is the error of a heartbeat whose answer may still come.
var errNoAnswer = errors.New("the server has not answered within the lease")

// leaseWait is the part of the lease for which a heartbeat waits for its answer.
const leaseWait = 8

// Lease returns a transport that extends Raft's lease of that length. extension returns by how much
// for a follower.
func Lease(inner Transport, length time.Duration, extension func(id raft.ServerID) time.Duration) Transport {
	return &lease{Transport: inner, length: length, extension: extension, followers: make(map[raft.ServerID]*answers)}
}

// AppendEntries implements raft.Transport.
func (l *lease) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	if !IsHeartbeat(args) {
		return l.Transport.AppendEntries(id, target, args, resp)
	}
	extension := l.extension(id)
	a := l.of(id, args.Term)
	if extension <= 0 {
		err := l.Transport.AppendEntries(id, target, args, resp)
		l.mu.Lock()
		defer l.mu.Unlock()
		a.end(err)
		return err
	}
	select {
	case <-l.ask(a, id, target, args):
	case <-time.After(l.length / leaseWait):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(a.last) < l.length+extension {
		// Raft decodes later answers into the same response: it must share no bytes with the
		// request.
		*resp = raft.AppendEntriesResponse{Term: args.Term, Success: true}
		return nil
	}
	if a.failed != nil {
		return a.failed
	}
	return errNoAnswer
}

// of returns the answers of a follower in a term.
func (l *lease) of(id raft.ServerID, term uint64) *answers {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.followers[id]
	switch {
	case a == nil || a.term < term:
		a = &answers{term: term, last: time.Now()}
		l.followers[id] = a
	case a.term > term: // a late heartbeat of an earlier term has no lease
		return &answers{term: term}
	}
	return a
}

// ask sends a heartbeat unless one is under way, and returns a channel that is closed with its end.
func (l *lease) ask(
	a *answers, id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.asked == nil {
		asked, request := make(chan struct{}), *args
		a.asked = asked
		l.asking.Go(func() { // ends at the latest with the transport's time-out
			err := l.Transport.AppendEntries(id, target, &request, new(raft.AppendEntriesResponse))
			l.mu.Lock()
			defer l.mu.Unlock()
			a.end(err)
			a.asked = nil
			close(asked)
		})
	}
	return a.asked
}

// end takes the end of a heartbeat. The caller holds mu.
func (a *answers) end(err error) {
	if a.failed = err; err == nil {
		a.last = time.Now()
	}
}

// Close implements raft.WithClose. Raft calls it when it has stopped.
func (l *lease) Close() error {
	err := l.Transport.Close()
	l.asking.Wait()
	return err
}
