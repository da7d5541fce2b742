package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/schedule"
)

// A stateError is returned when servers have states that they must never have, not even for a
// moment.
type stateError struct {
	text       string
	quarantine bool // a server has found it out by itself
}

func (e *stateError) Error() string { return e.text }

// oneState waits until every server has the same state at the same revision.
func (r *run) oneState() {
	state, err := awaitState(context.Background(), r.status)
	if err != nil {
		r.Fail("all servers at one revision with one state: %v", err)
		return
	}
	r.Say("all servers have the same state: %s", state)
}

// awaitState asks until all servers have the same state at the same revision, and returns that. A
// forbidden state ends it, also one that would heal.
func awaitState(ctx context.Context, ask func(context.Context) (*clustertest.Status, error)) (state string, err error) {
	var broken *stateError
	err = clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		status, err := ask(ctx)
		if err != nil {
			return err
		}
		if state, err = sameState(status, servers); errors.As(err, &broken) {
			return nil
		}
		return err
	})
	if broken != nil {
		return "", broken
	}
	return state, err
}

// mustNot returns the forbidden states in a status: a quarantine, or another hash at one revision.
func mustNot(s *clustertest.Status) error {
	first := make(map[uint64]*clustertest.Member)
	for i := range s.Members {
		m := &s.Members[i]
		switch {
		case m.Role != "server" || m.Store == nil:
			continue
		case m.Store.Quarantined != "":
			return &stateError{fmt.Sprintf("%s is in quarantine: %s", m.Name, m.Store.Quarantined), true}
		case m.Store.Hash == "":
			continue
		}
		other := first[m.Store.Revision]
		if other == nil {
			first[m.Store.Revision] = m
		} else if other.Store.Hash != m.Store.Hash {
			return &stateError{
				fmt.Sprintf("at revision %d %s has the hash %s, and %s has %s", m.Store.Revision, other.Name,
					other.Store.Hash, m.Name, m.Store.Hash), false}
		}
	}
	return nil
}

// sameState returns the state that so many servers have, all of them at the same revision.
func sameState(s *clustertest.Status, want int) (state string, err error) {
	if err := mustNot(s); err != nil {
		return "", err
	}
	found, first := 0, ""
	for _, m := range s.Members {
		if m.Role != "server" {
			continue
		}
		if m.Store == nil {
			return "", fmt.Errorf("the store of %s does not answer: %s", m.Name, m.Problem)
		}
		if m.Store.Hash == "" {
			return "", fmt.Errorf("%s tells no hash of its state", m.Name)
		}
		state := fmt.Sprintf("revision %d, hash %s", m.Store.Revision, m.Store.Hash)
		if found++; first == "" {
			first = state
		}
		if state != first {
			return "", fmt.Errorf("%s has %s, the first one %s", m.Name, state, first)
		}
	}
	if found != want {
		return "", fmt.Errorf("%d servers of %d are told of", found, want)
	}
	return first, nil
}

// watchStates looks all the time, also while faults are on, for servers with states that they must
// never have.
func (r *run) watchStates(ctx context.Context) {
	for turn := 0; ctx.Err() == nil; turn++ {
		schedule.Pause(ctx, time.Second)
		s := r.servers[turn%len(r.servers)]
		status, err := r.statusOf(ctx, s.Client.Discovery().RESTClient().Get().AbsPath("/barque/v1/status").DoRaw)
		if err != nil {
			continue // it is away, or has no leader: another one reports, or this one later
		}
		var broken *stateError
		if errors.As(mustNot(status), &broken) && !(broken.quarantine && r.mayDamage()) {
			r.Fail("server %s: %v", s.Name, broken)
			return
		}
	}
}

// mayDamage reports whether the fault that is on may make a server's state wrong.
func (r *run) mayDamage() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.damaging
}
