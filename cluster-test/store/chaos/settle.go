package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest/audit"
)

// settle waits until the group is whole: every member runs, votes, serves a linearizable read and
// is in no quarantine, and the audit knows the log up to what was read. What does not come about in
// time is a failure.
func (r *run) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := r.whole(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			r.fail("the group did not recover in %v: %v", patience, err)
			return
		}
		if died := r.died(); died != "" {
			r.fail("%s", died)
			return
		}
		schedule.Pause(ctx, 20*time.Millisecond)
	}
	if faults := r.log.Faults(); len(faults) > 0 {
		r.fail("the audit found:\n  %s", strings.Join(faults, "\n  "))
	}
}

// died tells of a member that has ended by itself.
func (r *run) died() string {
	for _, m := range r.members() {
		if m.Running() {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		state, err := m.Exited(ctx)
		cancel()
		return fmt.Sprintf("member %s has ended by itself (%v, %v); its log ends with:\n%s", m.Name, state, err, tail(m.LogFile()))
	}
	return ""
}

// tailBytes of a log file are shown.
const tailBytes = 3000

func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-tailBytes):])
}

func (r *run) whole(ctx context.Context) error {
	members := r.members()
	for _, m := range members {
		status, known, err := m.Status(ctx)
		if err != nil {
			return err
		}
		if status.Quarantined != "" {
			r.fail("%s is in quarantine: %s", m.Name, status.Quarantined)
		}
		voters := 0
		for _, k := range known {
			if k.Voter {
				voters++
			}
		}
		if voters != len(members) || len(known) != len(members) {
			return fmt.Errorf("%s knows %d members, %d of them voters, and there are %d", m.Name, len(known), voters, len(members))
		}
	}
	var newest uint64
	for _, m := range members {
		revision, err := r.serves(ctx, m)
		if err != nil {
			return err
		}
		newest = max(newest, revision)
	}
	return r.known(ctx, newest)
}

// serves makes a linearizable read on a member.
func (r *run) serves(ctx context.Context, m *store.Member) (uint64, error) {
	ctx, cancel := operation(ctx)
	defer cancel()
	_, _, revision, err := m.Get(ctx, "/first", raftstore.ViewOptions{})
	return revision, err
}

// watchersLag is how long all watchers may need to see a revision before the audit takes the state
// for what nobody has seen.
const watchersLag = 20 * time.Second

// known waits until the audit knows the log up to a revision. When the watchers of all members were
// told that history does not reach back to where they were, there is a part that nobody has seen.
func (r *run) known(ctx context.Context, revision uint64) error {
	waiting, cancel := context.WithTimeout(ctx, watchersLag) // brief: then the state itself is asked for
	defer cancel()
	for r.log.Head() < revision {
		if waiting.Err() != nil {
			return r.bridge(ctx)
		}
		schedule.Pause(waiting, 5*time.Millisecond)
	}
	return nil
}

func (r *run) bridge(ctx context.Context) error {
	m := r.pick(nil)
	if m == nil {
		return store.ErrDown
	}
	items, revision, err := m.List(ctx, member.ListArgs{})
	if err == nil {
		r.say("no watcher has seen revision %d; the audit goes on with the state at %d", r.log.Head()+1, revision)
		r.log.State("state of "+m.Name, revision, items)
	}
	return err
}

// finish checks, when the clients have ended, that all members have the state that the log gives.
func (r *run) finish(streams []*audit.Stream) {
	if r.failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var last uint64
	for {
		err := r.equal(ctx, &last)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			r.fail("the members did not come to the same state in %v: %v", patience, err)
			return
		}
		schedule.Pause(ctx, 50*time.Millisecond)
	}
	for _, s := range streams {
		for s.Last() < last && ctx.Err() == nil {
			schedule.Pause(ctx, 10*time.Millisecond)
		}
	}
	r.log.Finish(last)
	if faults := r.log.Faults(); len(faults) > 0 {
		r.fail("the audit found:\n  %s", strings.Join(faults, "\n  "))
	}
}

// equal compares the state of all members, at one revision, with the log and with each other. Keys
// expire all the while, so that it may take several tries until all are at the same revision.
func (r *run) equal(ctx context.Context, last *uint64) error {
	*last = 0
	hash := ""
	for _, m := range r.members() {
		if _, err := r.serves(ctx, m); err != nil {
			return err
		}
		status, _, err := m.Status(ctx)
		if err != nil {
			return err
		}
		if *last == 0 {
			*last, hash = status.Revision, status.StateHash
		}
		if status.Revision != *last {
			return fmt.Errorf("%s is at revision %d, another one at %d", m.Name, status.Revision, *last)
		}
		if status.StateHash != hash {
			r.fail("at revision %d %s has the state %s, another one has %s", *last, m.Name, status.StateHash, hash)
		}
	}
	if err := r.known(ctx, *last); err != nil {
		return err
	}
	for _, m := range r.members() {
		items, revision, err := m.List(ctx, member.ListArgs{View: raftstore.ViewOptions{Revision: *last}})
		if err != nil {
			return err
		}
		r.log.State("state of "+m.Name, revision, items)
	}
	return nil
}
