package main

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/detour"
)

func networkFaults() []fault {
	return []fault{
		{name: "leader alone", run: cutOff(theLeader)},
		{name: "follower alone", run: cutOff(aFollower)},
		{name: "agent alone", run: cutOff(anAgent)},
		{name: "leader mute", run: oneWay(theLeader, true)},
		{name: "leader deaf", run: oneWay(theLeader, false)},
		{name: "follower mute", run: oneWay(aFollower, true)},
		{name: "follower deaf", run: oneWay(aFollower, false)},
		{name: "agent mute", run: oneWay(anAgent, true)},
		{name: "agent deaf", run: oneWay(anAgent, false)},
		{name: "bridge", run: bridge},
		{name: "flapping", run: flapping},
		{name: "clients cut off", spares: true, run: clientsCutOff},
		{name: "packet loss", run: packetLoss},
		{name: "slow network", spares: true, run: slowNetwork},
		{name: "kill in a partition", run: killApart},
	}
}

// between loses the packets between some nodes and all others, clients too.
func (t *trial) between(nodes ...string) (drops []clustertest.Drop) {
	for _, a := range nodes {
		for _, b := range append(t.nodes(), clustertest.Host) {
			if a != b {
				drops = append(drops, clustertest.Both(a, b, 0)...)
			}
		}
	}
	return drops
}

// lose loses packets for a while.
func (t *trial) lose(ctx context.Context, from, to time.Duration, drops ...clustertest.Drop) error {
	if err := t.Cluster.Lose(drops...); err != nil {
		return err
	}
	t.hold(ctx, from, to)
	lost, err := t.loseNoMore()
	if err == nil && lost == 0 {
		err = errMetNobody
	}
	return err
}

// errMetNobody is the error of a fault that changed nothing: it must not count as one that the
// cluster has borne.
var errMetNobody = errors.New("no packet came by: the fault met nobody")

// loseNoMore makes the network whole, and returns how many packets were lost.
func (t *trial) loseNoMore() (lost uint64, err error) {
	lost, err = t.Cluster.Lost()
	return lost, errors.Join(err, t.Cluster.Lose())
}

func cutOff(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		alone := whom(t)
		t.meet(alone...)
		return t.lose(ctx, 3*time.Second, 8*time.Second, t.between(alone...)...)
	}
}

// oneWay loses the packets that a node sends the others, or those that the others send it. Clients
// reach all.
func oneWay(whom whoms, mute bool) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := whom(t)[0]
		t.meet(node)
		var drops []clustertest.Drop
		for _, n := range t.nodes() {
			switch {
			case n == node:
			case mute:
				drops = append(drops, clustertest.Drop{From: node, To: n})
			default:
				drops = append(drops, clustertest.Drop{From: n, To: node})
			}
		}
		return t.lose(ctx, 3*time.Second, 8*time.Second, drops...)
	}
}

// bridge leaves one follower that reaches all, while the leader and the other one do not reach each
// other.
func bridge(ctx context.Context, t *trial) error {
	t.meet(t.leader, t.others[1])
	t.say("only %s reaches both %s and %s", t.others[0], t.leader, t.others[1])
	return t.lose(ctx, 3*time.Second, 8*time.Second, clustertest.Both(t.leader, t.others[1], 0)...)
}

// flapping cuts the leader off, and lets it be, in quick change.
func flapping(ctx context.Context, t *trial) error {
	t.meet(t.leader)
	met := uint64(0)
	for range 6 {
		if err := t.Cluster.Lose(t.between(t.leader)...); err != nil {
			return err
		}
		t.hold(ctx, 100*time.Millisecond, time.Second)
		lost, err := t.loseNoMore()
		if err != nil {
			return err
		}
		met += lost
		t.hold(ctx, 100*time.Millisecond, 600*time.Millisecond)
	}
	if met == 0 {
		return errMetNobody
	}
	return nil
}

// clientsCutOff keeps the clients from reaching two of the servers, which reach each other.
func clientsCutOff(ctx context.Context, t *trial) error {
	nodes := theMajority(t)
	t.hit = nodes // and none may be taken for dead
	t.say("clients reach only %s", t.others[len(t.others)-1])
	var drops []clustertest.Drop
	for _, n := range nodes {
		drops = append(drops, clustertest.Both(clustertest.Host, n, 0)...)
	}
	return t.lose(ctx, 3*time.Second, 8*time.Second, drops...)
}

// packetLoss loses one packet of some between all nodes.
func packetLoss(ctx context.Context, t *trial) error {
	oneIn := uint32(5 + t.rnd.IntN(20))
	t.meet(t.nodes()...)
	t.say("one packet of %d between all nodes", oneIn)
	var drops []clustertest.Drop
	nodes := t.nodes()
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			drops = append(drops, clustertest.Both(a, b, oneIn)...)
		}
	}
	return t.lose(ctx, 5*time.Second, 10*time.Second, drops...)
}

// slowNetwork delays the packets between all nodes by well below the time-out of a heartbeat, so
// that the delay alone unseats no leader.
func slowNetwork(ctx context.Context, t *trial) error {
	by := time.Duration(5+t.rnd.IntN(40)) * time.Millisecond
	t.say("%v each way between all nodes", by)
	status, err := t.status(ctx)
	if err != nil {
		return err
	}
	var ends []detour.End
	for _, m := range status.Members {
		addr, err := netip.ParseAddr(m.Address)
		if err != nil {
			return err
		}
		ends = append(ends, detour.End{Namespace: t.Cluster.Netns(m.Name), Addr: addr})
	}
	var met atomic.Uint64
	d, err := detour.Open(ends, func(_, _ netip.Addr) time.Duration {
		met.Add(1)
		return by
	})
	if err != nil {
		return err
	}
	t.hold(ctx, 4*time.Second, 8*time.Second)
	if err := d.Close(); err != nil {
		return err
	}
	if met.Load() == 0 {
		return errMetNobody
	}
	return nil
}

// killApart cuts a follower off, kills the leader, and lets the follower, which lags, and the other
// one agree: the acknowledged writes of the leader are on one of the two only.
func killApart(ctx context.Context, t *trial) error {
	apart := t.others[0]
	t.meet(t.leader, apart)
	t.say("%s is killed while %s is cut off", t.leader, apart)
	if err := t.Cluster.Lose(t.between(apart)...); err != nil {
		return err
	}
	t.hold(ctx, 500*time.Millisecond, 2*time.Second)
	killed := t.Cluster.KillNodes(ctx, t.leader)
	lost, err := t.loseNoMore()
	if err := errors.Join(killed, err); err != nil {
		return err
	}
	if lost == 0 {
		return errMetNobody
	}
	t.hold(ctx, time.Second, 4*time.Second)
	return t.Cluster.StartNode(ctx, t.leader)
}
