package main

import (
	"context"
	"time"

	"github.com/barque/barque/cluster-test/store"
)

func networkFaults() []fault {
	return []fault{
		{name: "leader alone", run: cutOff(theLeader)},
		{name: "follower alone", run: cutOff(aFollower)},
		{name: "leader mute", run: oneWay(true)},
		{name: "leader deaf", run: oneWay(false)},
		{name: "bridge", run: bridge},
		{name: "flapping", run: flapping},
		{name: "slow links", run: slowLinks},
		{name: "leader far away", run: farAway},
		{name: "kill with slow links", run: killFarAway},
		{name: "kill in a partition", run: killApart},
	}
}

// shut cuts both directions between two members.
func (t *trial) shut(a, b *store.Member) {
	t.group.Shut(a, b)
	t.group.Shut(b, a)
}

func cutOff(whom func(*trial) []*store.Member) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		alone := whom(t)[0]
		t.say("%s", alone.Name)
		for _, m := range t.all() {
			t.shut(alone, m)
		}
		t.hold(ctx, time.Second, 3*time.Second)
		return nil
	}
}

// oneWay loses the packets that the leader sends, or those that it gets.
func oneWay(mute bool) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		t.say("%s", t.leader.Name)
		for _, m := range t.others {
			if mute {
				t.group.Shut(t.leader, m)
			} else {
				t.group.Shut(m, t.leader)
			}
		}
		t.hold(ctx, time.Second, 3*time.Second)
		return nil
	}
}

// bridge leaves one follower that reaches all, while the leader and the others do not reach each
// other.
func bridge(ctx context.Context, t *trial) error {
	t.say("only %s reaches %s", t.others[0].Name, t.leader.Name)
	for _, m := range t.others[1:] {
		t.shut(t.leader, m)
	}
	t.hold(ctx, 2*time.Second, 4*time.Second)
	return nil
}

// flapping cuts the leader off, and lets it be, in quick change.
func flapping(ctx context.Context, t *trial) error {
	t.say("%s", t.leader.Name)
	for range 6 {
		for _, m := range t.others {
			t.shut(t.leader, m)
		}
		t.hold(ctx, 50*time.Millisecond, 500*time.Millisecond)
		t.group.Heal()
		t.hold(ctx, 50*time.Millisecond, 300*time.Millisecond)
	}
	return nil
}

// delay makes all links of a member slow, both ways.
func (t *trial) delay(m *store.Member, by time.Duration) {
	for _, other := range t.all() {
		if other != m {
			t.group.Delay(m, other, by)
			t.group.Delay(other, m, by)
		}
	}
}

// drawDelay is well below the time-out of a heartbeat, so that the delay alone unseats no leader.
func (t *trial) drawDelay() time.Duration { return time.Duration(5+t.rnd.IntN(40)) * time.Millisecond }

func slowLinks(ctx context.Context, t *trial) error {
	by := t.drawDelay()
	t.say("%v each way", by)
	for _, m := range t.all() {
		t.delay(m, by)
	}
	t.hold(ctx, time.Second, 3*time.Second)
	return nil
}

func farAway(ctx context.Context, t *trial) error {
	by := t.drawDelay()
	t.say("%s, %v each way", t.leader.Name, by)
	t.delay(t.leader, by)
	t.hold(ctx, time.Second, 3*time.Second)
	return nil
}

// killFarAway kills the leader while many of its messages are still on their way.
func killFarAway(ctx context.Context, t *trial) error {
	by := t.drawDelay()
	for _, m := range t.all() {
		t.delay(m, by)
	}
	t.hold(ctx, 300*time.Millisecond, time.Second)
	err := killed(theLeader, (*store.Member).Kill)(ctx, t)
	t.say("%s, with links of %v each way", t.leader.Name, by)
	return err
}

// killApart cuts a follower off, kills the leader, and lets the follower, which lags, and the other
// one agree: the acknowledged writes of the leader are on one of the two only.
func killApart(ctx context.Context, t *trial) error {
	apart := t.others[0]
	t.say("%s while %s is cut off", t.leader.Name, apart.Name)
	for _, m := range t.all() {
		t.shut(apart, m)
	}
	t.hold(ctx, 200*time.Millisecond, time.Second)
	if err := t.leader.Kill(); err != nil {
		return err
	}
	t.group.Heal()
	t.hold(ctx, time.Second, 3*time.Second)
	return t.leader.Start(ctx)
}
