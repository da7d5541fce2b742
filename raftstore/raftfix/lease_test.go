package raftfix

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// lateFollower answers heartbeats late, or not at all.
type lateFollower struct {
	Transport

	mu    sync.Mutex
	takes time.Duration
	err   error
	asked int
}

// set changes how the follower answers.
func (f *lateFollower) set(takes time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes, f.err = takes, err
}

// ask counts a heartbeat, and returns how the follower answers it.
func (f *lateFollower) ask() (takes time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.takes, f.err
}

func (f *lateFollower) AppendEntries(
	_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	takes, err := f.ask()
	<-time.After(takes)
	if err == nil {
		*resp = raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ID: []byte("f")}, Term: args.Term, Success: true}
	}
	return err
}

func (f *lateFollower) Close() error { return nil }

// TestLease: while a follower's lease is extended its heartbeats do not wait for their answers, and
// count as answered for as long as the lease and its extension after the last answer.
func TestLease(t *testing.T) {
	const length, extension = 800 * time.Millisecond, 1200 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		follower := &lateFollower{}
		extended := extension
		l := Lease(follower, length, func(raft.ServerID) time.Duration { return extended })
		request := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("leader")}, Term: 3}
		var response raft.AppendEntriesResponse // Raft uses one for all
		beat := func() (time.Duration, error) {
			began := time.Now()
			err := l.AppendEntries("f", "f:1", request, &response)
			return time.Since(began), err
		}
		if took, err := beat(); err != nil || took != 0 || !response.Success {
			t.Fatalf("a follower that answers at once: %v after %v: %+v", err, took, response)
		}
		last := time.Now()
		follower.set(time.Minute, nil) // it answers no more
		for time.Since(last) < length+extension {
			took, err := beat()
			if want := time.Since(last) < length+extension; (err == nil) != want || took > length/leaseWait {
				t.Fatalf("%v after the last answer: %v after %v", time.Since(last), err, took)
			}
			if string(request.ID) != "leader" {
				t.Fatalf("a response has overwritten the request: it is of %q now", request.ID)
			}
			<-time.After(150 * time.Millisecond)
		}
		if _, err := beat(); !errors.Is(err, errNoAnswer) {
			t.Errorf("after the lease: %v", err)
		}
		synctest.Wait()
		if asked := follower.asked; asked != 2 {
			t.Errorf("%d heartbeats are under way at once", asked-1)
		}
		follower.set(0, nil)
		<-time.After(time.Minute) // now it has answered
		if _, err := beat(); err != nil {
			t.Errorf("when it answers again: %v", err)
		}

		// A heartbeat of the next term is the beginning of its lease, as for Raft.
		refused := errors.New("refused")
		follower.set(0, refused)
		<-time.After(time.Minute)
		request.Term = 4
		if _, err := beat(); err != nil {
			t.Errorf("the first heartbeat of a term: %v", err)
		}
		<-time.After(length + extension)
		if _, err := beat(); !errors.Is(err, refused) {
			t.Errorf("a follower that refuses: %v", err)
		}

		// Without an extension everything passes as it is.
		extended = 0
		follower.set(5*time.Second, refused)
		if took, err := beat(); !errors.Is(err, refused) || took != 5*time.Second {
			t.Errorf("without an extension: %v after %v", err, took)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
