package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/timeline"
)

// fault is a way to break the cluster. run breaks it, holds it so for a while, and mends the parts
// that do not heal by themselves, as the docs tell operators. Its note has the nodes and the
// outcome. An error is a failure of the cluster, or of the harness.
type fault struct {
	name  string
	needs func() error // nil: its requirements are met, or it has none
	alone bool         // acknowledged writes are undone by it, so no client may write meanwhile
	// damages: it makes the state of a server wrong, which that server may find out, and be
	// quarantined for.
	damages bool
	// spares: it hits no node, and none may be taken for dead for it. So it begins when no earlier
	// fault excuses an eviction any more.
	spares bool
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

// trial is one fault while it runs.
type trial struct {
	*run
	rnd       *rand.Rand
	leader    string
	others    []string          // the other servers, in a drawn order
	agents    []string          // in a drawn order
	addresses map[string]string // of all nodes, before the fault
	hit       []string          // nodes that it has met
	note      string
}

// allFaults in the order of the docs.
func allFaults() []fault {
	return slices.Concat(processFaults(), clockFaults(), networkFaults(), diskFaults(), memberFaults(), keyFaults(),
		certificateFaults())
}

// betweenFaults is how long all is well.
const betweenFaults = time.Second

// inject makes one fault, waits until the cluster is whole, and records it.
func (r *run) inject(number int) {
	f := r.cfg.At(number)
	t := &trial{run: r, rnd: r.cfg.Rand(fmt.Sprintf("fault %d", number))}
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	wait := betweenFaults
	if f.spares {
		wait = max(wait, r.evictions.Excused(time.Now()))
	}
	schedule.Pause(ctx, wait)
	if err := t.aim(ctx); err != nil {
		r.Fail("before %s: %v", f.name, err)
		return
	}
	span := timeline.Span{Kind: f.name, Begin: r.Elapsed(), Unheard: f.alone}
	r.setDamaging(f.damages)
	defer r.setDamaging(false)
	err := f.run(ctx, t)
	err = errors.Join(err, t.heal())
	span.End, span.Note, span.Targets = r.Elapsed(), t.leader+" led; "+t.note, t.hit
	if err != nil {
		r.Fail("%s: %s: %v", f.name, t.note, err)
	} else {
		r.settle(f)
	}
	r.evictions.End(time.Now())
	span.Settled = r.Elapsed()
	if !r.Failed() {
		r.wait("the watch on every server has told of all changes of pods", r.allTold)
	}
	r.evictions.Reported(time.Now())
	r.Made(span)
}

// setDamaging reports whether the fault that is on may make a server's state wrong.
func (r *run) setDamaging(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.damaging = on
}

// aim finds the leader, and the places of all nodes.
func (t *trial) aim(ctx context.Context) error {
	status, err := t.awaitLeader(ctx)
	if err != nil {
		return err
	}
	t.leader = status.Leader
	t.addresses = make(map[string]string)
	for _, m := range status.Members {
		t.addresses[m.Name] = m.Address
	}
	for _, n := range t.Cluster.Nodes() {
		switch {
		case strings.HasPrefix(n, "a"):
			t.agents = append(t.agents, n)
		case n != t.leader:
			t.others = append(t.others, n)
		}
	}
	for _, nodes := range [][]string{t.others, t.agents} {
		t.rnd.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	}
	return nil
}

// heal ends the leftovers of a failed fault.
func (t *trial) heal() error {
	err := t.Cluster.Lose()
	for _, n := range t.Cluster.Nodes() {
		if d := t.Cluster.Disk(n); d != nil {
			err = errors.Join(err, d.Thaw(), d.Free())
		}
	}
	return err
}

// status asks the servers in turn how the cluster is, until one answers.
func (r *run) status(ctx context.Context) (*clustertest.Status, error) {
	var errs error
	for _, s := range r.servers {
		status, err := r.statusOf(ctx, s.Client.Discovery().RESTClient().Get().AbsPath("/barque/v1/status").DoRaw)
		if err == nil && status.Leader != "" {
			return status, nil
		}
		if err == nil {
			err = errors.New("it knows of no leader")
		}
		errs = errors.Join(errs, fmt.Errorf("%s: %w", s.Name, err))
	}
	return nil, errs
}

func (r *run) statusOf(ctx context.Context, ask func(context.Context) ([]byte, error)) (*clustertest.Status, error) {
	ctx, cancel := clustertest.TryOnce(ctx)
	defer cancel()
	data, err := ask(ctx)
	if err != nil {
		return nil, err
	}
	status := new(clustertest.Status)
	return status, json.Unmarshal(data, status)
}

// awaitLeader waits for a leader.
func (r *run) awaitLeader(ctx context.Context) (status *clustertest.Status, err error) {
	err = clustertest.Poll(ctx, patience, func(ctx context.Context) (err error) {
		status, err = r.status(ctx)
		return err
	})
	return status, err
}

// hold lets time pass with the fault on: between the two durations.
func (t *trial) hold(ctx context.Context, from, to time.Duration) {
	schedule.Hold(ctx, t.rnd, from, to)
}

func (t *trial) say(format string, args ...any) { t.note = fmt.Sprintf(format, args...) }

// meet notes that the nodes are hit, and that they may rightly be taken for dead from now on until
// all is well.
func (t *trial) meet(nodes ...string) {
	t.say("%s", strings.Join(nodes, ", "))
	t.hit = append(t.hit, nodes...)
	t.evictions.Begin(time.Now(), nodes...)
}

// all returns all servers, the leader first.
func (t *trial) all() []string { return append([]string{t.leader}, t.others...) }

// any returns a server by chance.
func (t *trial) any() string { return t.all()[t.rnd.IntN(1+len(t.others))] }

// nodes returns all nodes, the leader first, then the servers, then the agents.
func (t *trial) nodes() []string { return append(t.all(), t.agents...) }

// The nodes that a fault hits.
func theLeader(t *trial) []string   { return []string{t.leader} }
func aFollower(t *trial) []string   { return t.others[:1] }
func anAgent(t *trial) []string     { return t.agents[:1] }
func theMajority(t *trial) []string { return t.all()[:len(t.all())/2+1] }
func everyone(t *trial) []string    { return t.nodes() }

// whoms is a choice of the nodes that a fault hits.
type whoms func(*trial) []string
