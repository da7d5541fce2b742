package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
)

// patience bounds steps that take a moment: starting members, waiting until they agree.
const patience = 2 * time.Minute

// subject is a store under load: Barque's or etcd.
type subject interface {
	// load puts the load on the store, with its clients at the place, and returns the outcome.
	load(ctx context.Context, l load, where place) (outcome, error)
}

// load is the work of clients, each with one request at a time.
type load struct {
	kind    member.LoadKind
	clients int
	bytes   int // of a value that is put
	length  time.Duration
}

func (l load) String() string {
	what := fmt.Sprintf("%d clients", l.clients)
	if l.clients == 1 {
		what = "1 client"
	}
	if l.kind == member.Puts {
		what += fmt.Sprintf(", %d B", l.bytes)
	}
	return what
}

// place is where the clients are, or the members that they speak to.
type place string

const (
	onLeader   place = "leader"
	onFollower place = "follower" // one of them
	onAll      place = "all members"
)

// outcome is the outcome of a load.
type outcome struct {
	Ops, Errors int
	Error       string // one of them
	Elapsed     time.Duration
	P50, P99    time.Duration
	// CPU that all members took together; etcd's clients are not in it, and Barque's are.
	CPU time.Duration
}

func (o outcome) perSecond() float64 { return float64(o.Ops) / o.Elapsed.Seconds() }

// keys of all loads: many enough that clients seldom meet.
const (
	prefix   = "/bench/"
	keyCount = 10_000
)

// group is a Barque cluster as a subject.
type group struct{ *store.Group }

// withGroup starts a group, hands it over, and removes it.
func (b *bench) withGroup(ctx context.Context, size int, options member.Options, use func(group) error) error {
	if options.LogStore == "" {
		options.LogStore = b.logStore
	}
	options.Timeouts.Silence = b.silent
	starting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	g, err := store.NewGroup(starting, store.Config{Size: size, Dir: b.dir, Options: options})
	if err != nil {
		return err
	}
	return errors.Join(use(group{g}), g.Close())
}

// at returns the members at a place, the leader first.
func (g group) at(ctx context.Context, where place) ([]*store.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	leader, err := g.AwaitLeader(ctx)
	if err != nil {
		return nil, err
	}
	all := g.Members()
	next := all[(leader.Index+1)%len(all)]
	switch where {
	case onLeader:
		return []*store.Member{leader}, nil
	case onFollower:
		return []*store.Member{next}, nil
	}
	return append(append([]*store.Member(nil), all[leader.Index:]...), all[:leader.Index]...), nil
}

func (g group) load(ctx context.Context, l load, where place) (outcome, error) {
	at, err := g.at(ctx, where)
	if err != nil {
		return outcome{}, err
	}
	before, err := g.cpu(ctx)
	if err != nil {
		return outcome{}, err
	}
	results, err := g.spread(ctx, at, member.Load{
		Kind: l.kind, Clients: l.clients, ValueBytes: l.bytes, Prefix: prefix, Keys: keyCount, For: l.length,
	})
	if err != nil {
		return outcome{}, err
	}
	after, err := g.cpu(ctx)
	o := outcomeOf(results)
	o.CPU = after - before
	return o, err
}

// spread runs the load, its clients divided among the members.
func (g group) spread(ctx context.Context, at []*store.Member, l member.Load) ([]member.LoadResult, error) {
	clients := make([]int, len(at))
	for i := range max(l.Clients, 1) {
		clients[i%len(at)]++
	}
	results, errs := make([]member.LoadResult, len(at)), make([]error, len(at))
	var running sync.WaitGroup
	for i, m := range at {
		mine := l
		if mine.Clients = clients[i]; mine.Clients > 0 {
			running.Go(func() { results[i], errs[i] = m.Load(ctx, mine) })
		}
	}
	running.Wait()
	return results, errors.Join(errs...)
}

func outcomeOf(results []member.LoadResult) outcome {
	var o outcome
	var latency member.Histogram
	for i := range results {
		r := &results[i]
		o.Ops, o.Errors, o.Elapsed = o.Ops+r.Ops, o.Errors+r.Errors, max(o.Elapsed, r.Elapsed)
		if r.Error != "" {
			o.Error = r.Error
		}
		latency.Merge(&r.Latency)
	}
	o.P50, o.P99 = latency.Quantile(0.5), latency.Quantile(0.99)
	return o
}

// cpu is the CPU time of all members.
func (g group) cpu(ctx context.Context) (time.Duration, error) {
	var sum time.Duration
	for _, m := range g.Members() {
		u, err := m.Usage(ctx)
		if err != nil {
			return 0, err
		}
		sum += u.CPU
	}
	return sum, nil
}
