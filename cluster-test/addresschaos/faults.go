package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/clock"
	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/edge/hold"
)

// fault is a way to break the cluster. run breaks it, holds it so for a while, and mends what does
// not heal by itself. An error is a failure of the cluster, or of the harness.
type fault struct {
	name  string
	needs func() error // nil: its requirements are met, or it has none
	// stated is how long an address is without an answer at most, by docs/edge.md; 0: it is not
	// stated, as without a quorum.
	stated time.Duration
	run    func(ctx context.Context, t *trial) error
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

// The times of docs/edge.md.
const (
	died   = time.Second     // a process has died, or gives its addresses back
	silent = 3 * time.Second // a machine says nothing any more
)

// allFaults in the order of the docs.
func allFaults() []fault {
	return []fault{
		{name: "kill the leader", stated: died, run: killed(theLeader)},
		{name: "kill a holder", stated: died, run: killed(aHolder)},
		{name: "kill the agent", stated: died, run: killed(theAgent)},
		{name: "stop the leader", stated: died, run: stopped(theLeader)},
		{name: "stop a holder", stated: died, run: stopped(aHolder)},
		{name: "transfer", stated: died, run: transfer},
		{name: "exclude a holder", stated: died, run: excluded},
		{name: "pause the leader", stated: silent, run: paused(theLeader, 3*time.Second, 6*time.Second)},
		{name: "pause a holder", stated: silent, run: paused(aHolder, 3*time.Second, 6*time.Second)},
		{name: "pause the leader until its holds end", stated: silent, run: paused(theLeader, 1800*time.Millisecond,
			2800*time.Millisecond)},
		{name: "pause a holder until its holds end", stated: silent, run: paused(aHolder, 1800*time.Millisecond,
			2800*time.Millisecond)},
		{name: "short pauses of the leader", run: shortPauses(theLeader)},
		{name: "short pauses of a holder", run: shortPauses(aHolder)},
		{name: "pause a majority", run: pausedMajority},
		{name: "leader alone", stated: silent, run: cutOff(theLeader, false)},
		{name: "holder alone", stated: silent, run: cutOff(aHolder, false)},
		{name: "leader silent", stated: silent, run: cutOff(theLeader, true)},
		{name: "holder silent", stated: silent, run: cutOff(aHolder, true)},
		{name: "leader mute", run: oneWay(theLeader, true)},
		{name: "leader deaf", run: oneWay(theLeader, false)},
		{name: "holder mute", stated: silent, run: oneWay(aHolder, true)},
		{name: "holder deaf", stated: silent, run: oneWay(aHolder, false)},
		{name: "bridge", run: bridge},
		{name: "flapping", run: flapping},
		{name: "packet loss", run: packetLoss},
		{name: "kill in a partition", run: killApart},
		{name: "disk hangs: leader", needs: disk.Possible, run: hung},
		{name: "disk slow: leader", needs: disk.Possible, run: slowDisk},
		{name: "clock jumps: leader", stated: died, needs: clock.Possible, run: clockJumps(theLeader)},
		{name: "clock jumps: holder", stated: died, needs: clock.Possible, run: clockJumps(aHolder)},
	}
}

// trial is one fault while it runs.
type trial struct {
	*run
	rnd    *rand.Rand
	leader string
	others []string                // the other servers, in a drawn order
	agents []string                // in a drawn order
	has    map[string][]netip.Addr // the addresses that each node answers for, before the fault
	note   string
}

// aim finds the leader, and the holders.
func (t *trial) aim(ctx context.Context) error {
	err := clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		status, err := t.Cluster.Status(ctx)
		if err == nil && status.Leader == "" {
			err = errors.New("no leader is known")
		}
		if err == nil {
			t.leader = status.Leader
		}
		return err
	})
	if err != nil {
		return err
	}
	t.has = map[string][]netip.Addr{}
	for _, addr := range t.addrs {
		mac, _ := t.watcher.Holder(addr)
		for node, own := range t.macs {
			if own == mac {
				t.has[node] = append(t.has[node], addr)
			}
		}
	}
	for _, n := range t.Cluster.Nodes() {
		switch {
		case strings.HasPrefix(n, "a"):
			t.agents = append(t.agents, n)
		case n != t.leader:
			t.others = append(t.others, n)
		}
	}
	t.rnd.Shuffle(len(t.others), func(i, j int) { t.others[i], t.others[j] = t.others[j], t.others[i] })
	return nil
}

// whom is the choice of the node that a fault hits.
type whom func(*trial) string

func theLeader(t *trial) string { return t.leader }
func theAgent(t *trial) string  { return t.agents[0] }

// aHolder returns a node that holds an address and does not lead; the one with the most, if there
// are several. Without one it is the agent.
func aHolder(t *trial) string {
	return slices.MaxFunc(slices.Concat(t.agents, t.others), func(a, b string) int {
		return len(t.has[a]) - len(t.has[b])
	})
}

func (t *trial) say(format string, args ...any) { t.note = fmt.Sprintf(format, args...) }

// meet notes the node that is hit.
func (t *trial) meet(node string) { t.say("%s, which answered for %d", node, len(t.has[node])) }

func (t *trial) hold(ctx context.Context, from, to time.Duration) {
	schedule.Hold(ctx, t.rnd, from, to)
}

func killed(of whom) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := of(t)
		t.meet(node)
		if err := t.Cluster.KillNodes(ctx, node); err != nil {
			return err
		}
		t.hold(ctx, time.Second, 4*time.Second)
		return t.Cluster.StartNode(ctx, node)
	}
}

func stopped(of whom) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := of(t)
		t.meet(node)
		if r := t.Cluster.DevResult(ctx, "stop", node); r.Error != nil {
			return r.Error
		}
		t.hold(ctx, time.Second, 2*time.Second)
		return t.Cluster.StartNode(ctx, node)
	}
}

func transfer(ctx context.Context, t *trial) error {
	t.say("to %s", t.others[0])
	return clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
		return t.Cluster.BarqueResult(ctx, "cluster", "transfer-leader", t.others[0]).Error
	})
}

// excluded takes a node its addresses by a label. No address may be answered by it then.
func excluded(ctx context.Context, t *trial) error {
	const label = "node.kubernetes.io/exclude-from-external-load-balancers"
	node := aHolder(t)
	t.meet(node)
	set := func(to string) error {
		return clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
			return t.Cluster.KubectlResult(ctx, "", "label", "node", node, to, "--overwrite").Error
		})
	}
	err := set(label + "=true")
	if err == nil {
		err = clustertest.Poll(ctx, patience, func(context.Context) error {
			for _, addr := range t.has[node] {
				if mac, _ := t.watcher.Holder(addr); mac == t.macs[node] && !slices.Contains(apiAddresses, addr) {
					return fmt.Errorf("%s still answers for %v", node, addr)
				}
			}
			return nil
		})
	}
	return errors.Join(err, set(label+"-"))
}

// slack is for the way of a signal to a process, and of an answer to the watcher.
const slack = 300 * time.Millisecond

// fellSilent checks that a node has answered for none of its addresses later than at a time.
func (t *trial) fellSilent(node string, by time.Time) error {
	var errs []error
	for _, addr := range t.has[node] {
		if last := t.watcher.LastOf(addr, t.macs[node]); last.After(by.Add(slack)) {
			errs = append(errs, fmt.Errorf("%s answered for %v at %s, %v after its last hold must have ended",
				node, addr, last.Format(time.StampMilli), last.Sub(by)))
		}
	}
	return errors.Join(errs...)
}

func paused(of whom, from, to time.Duration) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := of(t)
		t.meet(node)
		if err := t.Cluster.Signal(syscall.SIGSTOP, node); err != nil {
			return err
		}
		began := time.Now()
		t.hold(ctx, from, to)
		silence := t.fellSilent(node, began)
		return errors.Join(silence, t.Cluster.Signal(syscall.SIGCONT, node))
	}
}

// shortPauses stop a process again and again, for less than its holds last, so that it stops at
// many points.
func shortPauses(of whom) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := of(t)
		t.meet(node)
		for range 10 {
			if err := t.Cluster.Signal(syscall.SIGSTOP, node); err != nil {
				return err
			}
			t.hold(ctx, 50*time.Millisecond, 900*time.Millisecond)
			if err := t.Cluster.Signal(syscall.SIGCONT, node); err != nil {
				return err
			}
			t.hold(ctx, 5*time.Millisecond, 200*time.Millisecond)
		}
		return nil
	}
}

// pausedMajority leaves no leader. All that go on fall silent.
func pausedMajority(ctx context.Context, t *trial) error {
	nodes := []string{t.leader, t.others[0]}
	t.say("%s", strings.Join(nodes, ", "))
	if err := t.Cluster.Signal(syscall.SIGSTOP, nodes...); err != nil {
		return err
	}
	began := time.Now()
	t.hold(ctx, hold.Duration+time.Second, 6*time.Second)
	var errs []error
	for _, n := range t.Cluster.Nodes() {
		errs = append(errs, t.fellSilent(n, began.Add(hold.Duration)))
	}
	return errors.Join(append(errs, t.Cluster.Signal(syscall.SIGCONT, nodes...))...)
}

// between loses the packets between some node and all others, and those to the watcher if it is to
// be silent.
func (t *trial) between(node string, watcher bool) (drops []clustertest.Drop) {
	for _, n := range t.Cluster.Nodes() {
		if n != node {
			drops = append(drops, clustertest.Both(node, n, 0)...)
		}
	}
	if watcher {
		drops = append(drops, clustertest.Both(node, clustertest.Host, 0)...)
	}
	return drops
}

// errMetNobody is the error of a fault that changed nothing.
var errMetNobody = errors.New("no packet came by: the fault met nobody")

// lose loses packets for a while.
func (t *trial) lose(ctx context.Context, drops ...clustertest.Drop) error {
	if err := t.Cluster.Lose(drops...); err != nil {
		return err
	}
	t.hold(ctx, 3*time.Second, 6*time.Second)
	lost, err := t.Cluster.Lost()
	if err == nil && lost == 0 {
		err = errMetNobody
	}
	return err
}

func cutOff(of whom, watcher bool) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := of(t)
		t.meet(node)
		began := time.Now()
		err := t.lose(ctx, t.between(node, watcher)...)
		return errors.Join(err, t.fellSilent(node, began.Add(hold.Duration)), t.Cluster.Lose())
	}
}

// oneWay loses the packets that a node sends the others, or those that the others send it.
func oneWay(of whom, mute bool) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := of(t)
		t.meet(node)
		var drops []clustertest.Drop
		for _, n := range t.Cluster.Nodes() {
			switch {
			case n == node:
			case mute:
				drops = append(drops, clustertest.Drop{From: node, To: n})
			default:
				drops = append(drops, clustertest.Drop{From: n, To: node})
			}
		}
		return errors.Join(t.lose(ctx, drops...), t.Cluster.Lose())
	}
}

// bridge leaves one follower that reaches both other servers, which do not reach each other.
func bridge(ctx context.Context, t *trial) error {
	t.say("%s and %s do not reach each other", t.leader, t.others[1])
	return errors.Join(t.lose(ctx, clustertest.Both(t.leader, t.others[1], 0)...), t.Cluster.Lose())
}

// flapping cuts the leader off, and lets it be, in quick change.
func flapping(ctx context.Context, t *trial) error {
	t.meet(t.leader)
	for range 6 {
		if err := t.Cluster.Lose(t.between(t.leader, false)...); err != nil {
			return err
		}
		t.hold(ctx, 100*time.Millisecond, 1500*time.Millisecond)
		if err := t.Cluster.Lose(); err != nil {
			return err
		}
		t.hold(ctx, 100*time.Millisecond, 600*time.Millisecond)
	}
	return nil
}

func packetLoss(ctx context.Context, t *trial) error {
	oneIn := uint32(4 + t.rnd.IntN(12))
	t.say("one packet of %d between all nodes", oneIn)
	var drops []clustertest.Drop
	nodes := t.Cluster.Nodes()
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			drops = append(drops, clustertest.Both(a, b, oneIn)...)
		}
	}
	return errors.Join(t.lose(ctx, drops...), t.Cluster.Lose())
}

// killApart cuts a holder off, and kills the leader.
func killApart(ctx context.Context, t *trial) error {
	apart := aHolder(t)
	t.say("%s is killed while %s is cut off, which answered for %d", t.leader, apart, len(t.has[apart]))
	if err := t.Cluster.Lose(t.between(apart, false)...); err != nil {
		return err
	}
	began := time.Now()
	t.hold(ctx, 0, 2*time.Second)
	killed := t.Cluster.KillNodes(ctx, t.leader)
	t.hold(ctx, 3*time.Second, 4*time.Second)
	err := errors.Join(killed, t.fellSilent(apart, began.Add(hold.Duration)), t.Cluster.Lose())
	if err != nil {
		return err
	}
	return t.Cluster.StartNode(ctx, t.leader)
}

func hung(ctx context.Context, t *trial) error {
	t.meet(t.leader)
	return disk.Frozen(func() { t.hold(ctx, 3*time.Second, 6*time.Second) }, t.Cluster.Disk(t.leader))
}

// slowDisk lets the leader's disk write for some milliseconds of each hundred only.
func slowDisk(ctx context.Context, t *trial) error {
	t.meet(t.leader)
	for range 20 {
		err := disk.Frozen(func() { t.hold(ctx, 50*time.Millisecond, 250*time.Millisecond) }, t.Cluster.Disk(t.leader))
		if err != nil {
			return err
		}
		t.hold(ctx, 5*time.Millisecond, 30*time.Millisecond)
	}
	return nil
}

// jumps is how far a wall clock is moved.
var jumps = [...]time.Duration{time.Minute, -time.Minute, time.Hour, -time.Hour}

// clockJumps moves a wall clock for a while. Nothing depends on it.
func clockJumps(of whom) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node, by := of(t), jumps[t.rnd.IntN(len(jumps))]
		t.say("%s by %v", node, by)
		back, err := t.Cluster.MoveClocks(by, node)
		if err == nil {
			t.hold(ctx, 3*time.Second, 5*time.Second)
		}
		return errors.Join(err, back())
	}
}
