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
	"github.com/barque/barque/cluster-test/timeline"
)

// fault is a way to break the cluster. run breaks it, holds it so for a while, and puts right what does not put itself
// right, as its operators are told to. It tells in its note whom it met and what came of it. An error is a failure of the
// cluster, or of the harness.
type fault struct {
	name  string
	disk  bool // it needs a disk of each server's own
	alone bool // acknowledged writes are undone by it, so that nobody may write meanwhile
	run   func(ctx context.Context, t *trial) error
}

// trial is one fault while it runs.
type trial struct {
	*run
	rnd    *rand.Rand
	leader string
	others []string // the other servers, in a drawn order
	agents []string // in a drawn order
	hit    []string // nodes that it has met
	note   string
}

// allFaults in the order in which the docs tell of them.
func allFaults() []fault {
	return slices.Concat(processFaults(), networkFaults(), diskFaults(), memberFaults())
}

// betweenFaults is how long all is well.
const betweenFaults = time.Second

// fault returns the one with a number: rounds in which each comes once, in an order of the seed.
func (r *run) fault(number int) fault {
	n := len(r.cfg.faults)
	return r.cfg.faults[r.rand(fmt.Sprintf("round %d", number/n)).Perm(n)[number%n]]
}

// inject makes one fault, waits until the cluster is whole, and records it.
func (r *run) inject(number int) {
	f := r.fault(number)
	t := &trial{run: r, rnd: r.rand(fmt.Sprintf("fault %d", number))}
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	pause(ctx, betweenFaults)
	if err := t.aim(ctx); err != nil {
		r.fail("before %s: %v", f.name, err)
		return
	}
	span := timeline.Span{Kind: f.name, Begin: time.Since(r.start), Unheard: f.alone}
	err := f.run(ctx, t)
	err = errors.Join(err, t.heal())
	span.End, span.Note, span.Targets = time.Since(r.start), t.note, t.hit
	if err != nil {
		r.fail("%s: %s: %v", f.name, t.note, err)
	} else {
		r.settle(f)
	}
	r.troubleOver()
	span.Settled = time.Since(r.start)
	r.mu.Lock()
	r.spans = append(r.spans, span)
	gaps := (&timeline.Run{Spans: []timeline.Span{span}, Samples: r.samples}).Gaps()
	r.mu.Unlock()
	r.say("%d %s: %s led; %s; longest time without a write %v; whole after %v", number+1, f.name, t.leader, t.note,
		gaps[0].Round(time.Millisecond), (span.Settled - span.End).Round(10*time.Millisecond))
}

// aim finds out who leads.
func (t *trial) aim(ctx context.Context) error {
	status, err := t.awaitLeader(ctx)
	if err != nil {
		return err
	}
	t.leader = status.Leader
	for _, n := range t.cluster.Nodes() {
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

// heal ends what a fault that failed may have left.
func (t *trial) heal() error {
	err := t.cluster.Lose()
	for _, n := range t.cluster.Nodes() {
		if d := t.cluster.Disk(n); d != nil {
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
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	data, err := ask(ctx)
	if err != nil {
		return nil, err
	}
	status := new(clustertest.Status)
	return status, json.Unmarshal(data, status)
}

// awaitLeader waits until somebody leads.
func (r *run) awaitLeader(ctx context.Context) (status *clustertest.Status, err error) {
	return status, clustertest.Poll(ctx, patience, func(ctx context.Context) (err error) {
		status, err = r.status(ctx)
		return err
	})
}

// rand returns randomness of the seed for a name.
func (r *run) rand(name string) *rand.Rand {
	h := uint64(14695981039346656037) // FNV-1a
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(r.cfg.seed, h))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// hold lets time pass with the fault on: between the two durations.
func (t *trial) hold(ctx context.Context, from, to time.Duration) {
	pause(ctx, from+time.Duration(t.rnd.Int64N(int64(to-from)+1)))
}

func (t *trial) say(format string, args ...any) { t.note = fmt.Sprintf(format, args...) }

// meet notes that the nodes are hit, and that they may rightly be taken for dead from now on until all is well.
func (t *trial) meet(nodes ...string) {
	t.say("%s", strings.Join(nodes, ", "))
	t.hit = append(t.hit, nodes...)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range nodes {
		t.troubles = append(t.troubles, trouble{node: n, from: time.Now()})
	}
}

// troubleOver ends the times in which nodes may be taken for dead.
func (r *run) troubleOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.troubles {
		if r.troubles[i].to.IsZero() {
			r.troubles[i].to = time.Now()
		}
	}
}

// all returns all servers, the leader first.
func (t *trial) all() []string { return append([]string{t.leader}, t.others...) }

// any returns a server by chance.
func (t *trial) any() string { return t.all()[t.rnd.IntN(1+len(t.others))] }

// nodes returns all nodes, the leader first, then the servers, then the agents.
func (t *trial) nodes() []string { return append(t.all(), t.agents...) }

// Whom a fault meets.
func theLeader(t *trial) []string   { return []string{t.leader} }
func aFollower(t *trial) []string   { return t.others[:1] }
func anAgent(t *trial) []string     { return t.agents[:1] }
func theMajority(t *trial) []string { return t.all()[:len(t.all())/2+1] }
func everyone(t *trial) []string    { return t.nodes() }

// whoms is a choice of whom a fault meets.
type whoms func(*trial) []string
