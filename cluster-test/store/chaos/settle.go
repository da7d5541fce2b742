package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/raftstore"
)

// settle waits until the group is whole: every member runs, votes, serves a linearizable read and
// is in no quarantine. A group that is not whole in time is a failure.
func (r *run) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := r.whole(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			r.Fail("the group did not recover in %v: %v", patience, err)
			return
		}
		if died := r.died(); died != "" {
			r.Fail("%s", died)
			return
		}
		schedule.Pause(ctx, 20*time.Millisecond)
	}
}

// died reports a member that has ended by itself.
func (r *run) died() string {
	for _, m := range r.members() {
		if m.Running() {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		state, err := m.Exited(ctx)
		cancel()
		return fmt.Sprintf("member %s has ended by itself (%v, %v); its log ends with:\n%s", m.Name, state, err,
			tail(m.LogFile()))
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
			r.Fail("%s is in quarantine: %s", m.Name, status.Quarantined)
		}
		voters := 0
		for _, k := range known {
			if k.Voter {
				voters++
			}
		}
		if voters != len(members) || len(known) != len(members) {
			return fmt.Errorf("%s knows %d members, %d of them voters, and there are %d", m.Name, len(known), voters,
				len(members))
		}
	}
	for _, m := range members {
		if err := r.serves(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// serves makes a linearizable read on a member.
func (r *run) serves(ctx context.Context, m *store.Member) error {
	ctx, cancel := operation(ctx)
	defer cancel()
	_, _, _, err := m.Get(ctx, "/first", raftstore.ViewOptions{})
	return err
}
