package main

import (
	"context"
	"fmt"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
)

func groupFaults() []fault {
	return []fault{
		{name: "transfer", run: func(ctx context.Context, t *trial) error {
			t.say("%s to %s", t.leader.Name, t.others[0].Name)
			return t.transfer(ctx)
		}},
		{name: "snapshots", run: snapshots},
		{name: "replace the leader", run: replaced(theLeader)},
		{name: "replace a follower", run: replaced(aFollower)},
		{name: "one more, one less", run: exchange},
	}
}

// snapshots has all members take one, and one of them killed in the middle, perhaps.
func snapshots(ctx context.Context, t *trial) error {
	t.say("all")
	for _, m := range t.all() {
		limited, cancel := context.WithTimeout(ctx, patience/2)
		err := m.Change(limited, member.Change{Kind: member.Snapshot})
		cancel()
		if err != nil {
			// A member without anything new to snapshot is no fault; it is printed.
			t.say("%s: %s", m.Name, brief(err))
		}
	}
	return nil
}

// expel makes the others forget a member that does not run, and empties its directory.
func (t *trial) expel(ctx context.Context, m *store.Member) error {
	if err := t.ask(ctx, m, member.Change{Kind: member.Remove, ID: m.ID()}); err != nil {
		return fmt.Errorf("remove %s: %w", m.Name, err)
	}
	return m.Wipe()
}

// join makes a member that has started with an empty directory one of the group, with a vote.
func (t *trial) join(ctx context.Context, m *store.Member) error {
	if err := m.Join(ctx); err != nil {
		return fmt.Errorf("%s joins: %w", m.Name, err)
	}
	return nil // settle waits for its vote
}

// renew gives a member, which may run, a new life with an empty directory.
func (t *trial) renew(ctx context.Context, m *store.Member) error {
	if err := m.Kill(); err != nil {
		return err
	}
	if err := t.expel(ctx, m); err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	return t.join(ctx, m)
}

// ask has some other member make a change, for as long as it is refused: those that stay may not
// have found each other yet.
func (t *trial) ask(ctx context.Context, not *store.Member, c member.Change) error {
	for {
		var err error
		for _, m := range t.members() {
			if m == not || !m.Running() {
				continue
			}
			limited, cancel := context.WithTimeout(ctx, 4*opTimeout) // brief: then the next one is asked
			err = m.Change(limited, c)
			cancel()
			if err == nil {
				return nil
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("for %v: %w", patience, err)
		}
		schedule.Pause(ctx, 100*time.Millisecond)
	}
}

func replaced(whom func(*trial) []*store.Member) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		m := whom(t)[0]
		t.say("%s", m.Name)
		if err := m.Kill(); err != nil {
			return err
		}
		t.hold(ctx, 0, 500*time.Millisecond)
		return t.renew(ctx, m)
	}
}

// exchange makes the group larger by the spare one, and removes another one, which becomes the
// spare. The one that goes may lead, and may run on when it was removed.
func exchange(ctx context.Context, t *trial) error {
	var spare *store.Member
	for _, m := range t.group.Members() {
		if !t.isActive(m) {
			spare = m
		}
	}
	gone := t.any()
	t.say("%s comes, %s goes", spare.Name, gone.Name)
	if err := spare.Start(ctx); err != nil {
		return err
	}
	if err := t.join(ctx, spare); err != nil {
		return err
	}
	if err := t.group.AwaitVoters(ctx, append(t.all(), spare)...); err != nil {
		return err
	}
	t.replace(nil, spare)
	if err := t.ask(ctx, nil, member.Change{Kind: member.Remove, ID: gone.ID()}); err != nil {
		return fmt.Errorf("remove %s: %w", gone.Name, err)
	}
	t.replace(gone, nil)
	t.hold(ctx, 0, time.Second) // a removed member does not end by itself
	if err := gone.Kill(); err != nil {
		return err
	}
	return gone.Wipe()
}
