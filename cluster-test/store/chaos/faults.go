package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/cluster-test/timeline"
)

// fault is a way to break the group. run breaks it, holds it so for a while, and mends the parts
// that do not heal by themselves. Its note has the members and the outcome. An error is a failure
// of the store, or of the harness.
type fault struct {
	name  string
	needs func() error // nil: its requirements are met, or it has none
	run   func(ctx context.Context, t *trial) error
}

// Name is the fault's name in reports.
func (f fault) Name() string { return f.name }

// Possible is nil where it can be made.
func (f fault) Possible() error {
	if f.needs == nil {
		return nil
	}
	return f.needs()
}

// trial is one fault while it runs.
type trial struct {
	*run
	rnd    *rand.Rand
	leader *store.Member
	others []*store.Member // in a drawn order
	note   string
}

// allFaults in the order of the docs.
func allFaults() []fault {
	return slices.Concat(processFaults(), networkFaults(), diskFaults(), groupFaults())
}

// betweenFaults is how long all is well.
const betweenFaults = 300 * time.Millisecond

// inject makes one fault, waits until the group is whole, and records it.
func (r *run) inject(number int) {
	f := r.cfg.At(number)
	t := &trial{run: r, rnd: r.cfg.Rand(fmt.Sprintf("fault %d", number))}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	schedule.Pause(ctx, betweenFaults)
	var err error
	if t.leader, err = r.group.AwaitLeader(ctx); err != nil {
		r.Fail("before %s: %v", f.name, err)
		return
	}
	t.others = slices.DeleteFunc(r.members(), func(m *store.Member) bool { return m == t.leader })
	slices.SortFunc(t.others, func(a, b *store.Member) int { return a.Index - b.Index })
	t.rnd.Shuffle(len(t.others), func(i, j int) { t.others[i], t.others[j] = t.others[j], t.others[i] })
	span := timeline.Span{Kind: f.name, Begin: r.Elapsed()}
	err = f.run(ctx, t)
	r.group.Heal()
	span.End, span.Note = r.Elapsed(), t.leader.Name+" led; "+t.note
	if err != nil {
		r.Fail("%s: %v", f.name, err)
	} else {
		r.settle()
	}
	span.Settled = r.Elapsed()
	r.Made(span)
}

// hold lets time pass with the fault on: between the two durations.
func (t *trial) hold(ctx context.Context, from, to time.Duration) {
	schedule.Hold(ctx, t.rnd, from, to)
}

func (t *trial) say(format string, args ...any) { t.note = fmt.Sprintf(format, args...) }

// all returns all members, the leader first.
func (t *trial) all() []*store.Member { return append([]*store.Member{t.leader}, t.others...) }

// any returns a member by chance.
func (t *trial) any() *store.Member { return t.all()[t.rnd.IntN(1+len(t.others))] }

// names of members, for notes.
func names(members []*store.Member) (s string) {
	for i, m := range members {
		if i > 0 {
			s += ", "
		}
		s += m.Name
	}
	return s
}

// each calls f for all members, one after the other, until it fails.
func each(members []*store.Member, f func(*store.Member) error) error {
	for _, m := range members {
		if err := f(m); err != nil {
			return err
		}
	}
	return nil
}

// killed is a fault that ends processes, all at the same moment or nearly, and starts them again.
func killed(whom func(*trial) []*store.Member, end func(*store.Member) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		members := whom(t)
		t.say("%s", names(members))
		if err := each(members, end); err != nil {
			return err
		}
		t.hold(ctx, 100*time.Millisecond, 1500*time.Millisecond)
		return each(members, func(m *store.Member) error { return m.Start(ctx) })
	}
}

func theLeader(t *trial) []*store.Member   { return []*store.Member{t.leader} }
func aFollower(t *trial) []*store.Member   { return t.others[:1] }
func everyone(t *trial) []*store.Member    { return t.all() }
func theMajority(t *trial) []*store.Member { return t.all()[:(1+len(t.others))/2+1] }

// paused is a fault that stops processes for longer than an election.
func paused(whom func(*trial) []*store.Member) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		members := whom(t)
		t.say("%s", names(members))
		if err := each(members, (*store.Member).Pause); err != nil {
			return err
		}
		t.hold(ctx, time.Second, 3*time.Second)
		return each(members, (*store.Member).Continue)
	}
}

func processFaults() []fault {
	kill := (*store.Member).Kill
	return []fault{
		{name: "kill the leader", run: killed(theLeader, kill)},
		{name: "kill a follower", run: killed(aFollower, kill)},
		{name: "kill a majority", run: killed(theMajority, kill)},
		{name: "kill all", run: killed(everyone, kill)},
		{name: "pause the leader", run: paused(theLeader)},
		{name: "pause a follower", run: paused(aFollower)},
		{name: "pause a majority", run: paused(theMajority)},
		{name: "rolling restart", run: rollingRestart},
		{name: "clock", run: clock},
		{name: "kill at a point", run: func(ctx context.Context, t *trial) error { return killAtPoint(ctx, t, false) }},
		{name: "kill in a start", run: killInStart},
	}
}

// rollingRestart stops one member after the other in order, and starts it again.
func rollingRestart(ctx context.Context, t *trial) error {
	members := append(slices.Clone(t.others), t.leader)
	t.say("%s", names(members))
	for _, m := range members {
		if err := m.Stop(ctx); err != nil {
			return err
		}
		if err := m.Start(ctx); err != nil {
			return err
		}
		if _, err := t.group.AwaitLeader(ctx); err != nil {
			return err
		}
	}
	return nil
}

// clock moves the wall clock of a member, by up to an hour in either direction, and back.
func clock(ctx context.Context, t *trial) error {
	m := t.any()
	offset := time.Duration(t.rnd.Int64N(int64(2*time.Hour))) - time.Hour
	t.say("%s is %v off", m.Name, offset.Round(time.Second))
	if err := m.SetClock(ctx, offset); err != nil {
		return err
	}
	t.hold(ctx, 500*time.Millisecond, 2*time.Second)
	if t.rnd.IntN(2) == 0 { // another one leads, with another clock
		if err := t.transfer(ctx); err != nil {
			return err
		}
		t.hold(ctx, 200*time.Millisecond, 500*time.Millisecond)
	}
	return m.SetClock(ctx, 0)
}

// transfer makes a follower the leader. A refusal, or an election, is no fault; it is printed.
func (t *trial) transfer(ctx context.Context) error {
	ctx, cancel := operation(ctx)
	defer cancel()
	err := t.leader.Change(ctx, member.Change{Kind: member.Transfer, ID: t.others[0].ID()})
	if errors.Is(err, store.ErrDown) {
		return err
	}
	if err != nil {
		t.say("%s; not transferred: %s", t.note, brief(err))
	}
	return nil
}
