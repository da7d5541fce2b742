package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/cluster-test/faultrun"
	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
)

// config of a run.
type config struct {
	schedule.Schedule[fault]
	dir     string // where the group's directory is made
	options member.Options
	discard bool      // keep no evidence: the failures are wanted
	out     io.Writer // progress
}

const (
	size = 3
	// spares are members that run only while the group is made larger.
	spares = 1
	// diskMegabytes is room for some times the size of a run's store.
	diskMegabytes = 192
	// patience is how long anything may take that takes a second on an idle machine. A machine that
	// is busy with other things must not fail a run.
	patience = 2 * time.Minute
)

// run is one run.
type run struct {
	faultrun.Run
	cfg     config
	group   *store.Group
	much    atomic.Bool  // see writer
	missed  int          // armed fault points that no member reached
	judged  check.Counts // of all turns
	writers []*writer

	mu     sync.Mutex
	active []*store.Member // that should serve, when no fault is on
}

// execute makes a run. The error is about the run itself: that there was none. The faults of the
// store are in the failures of the run.
func execute(ctx context.Context, cfg config) (r *run, err error) {
	r = &run{cfg: cfg}
	r.Start(cfg.out)
	opts := store.Config{Size: size, Dir: cfg.dir, Links: true, Grace: answerGrace, Options: cfg.options}
	if store.DisksPossible() == nil {
		opts.DiskMegabytes = diskMegabytes
	}
	starting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if r.group, err = store.NewGroup(starting, opts); err != nil {
		return nil, fmt.Errorf("start the group: %w", err)
	}
	defer func() { err = errors.Join(err, r.group.Close()) }()
	r.active = r.group.Members()
	for range spares {
		if _, err := r.group.Add(); err != nil {
			return nil, err
		}
	}
	if err := r.begin(starting); err != nil {
		return nil, err
	}
	r.work(ctx)
	if r.Failed() && !cfg.discard {
		r.keep()
	}
	return r, context.Cause(ctx)
}

// begin writes the first key, so that watchers have a revision to begin after.
func (r *run) begin(ctx context.Context) error {
	if _, err := r.active[0].Commit(ctx,
		raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/first"}}}); err != nil {
		return fmt.Errorf("the first write: %w", err)
	}
	for _, m := range r.group.Members() {
		for i := range 2 {
			name := fmt.Sprintf("%s-w%d", m.Name, i)
			r.writers = append(r.writers, &writer{run: r, name: name, member: m, rnd: r.cfg.Rand(name)})
		}
	}
	return nil
}

// work makes the faults, in turns.
func (r *run) work(ctx context.Context) {
	var record *check.Record
	for number, more := 0, true; more && !r.Failed(); {
		record, more = r.turn(ctx, record, &number)
	}
}

// over reports whether there is no next fault.
func (r *run) over(ctx context.Context, number int) bool {
	return ctx.Err() != nil || r.cfg.Over(number, r.Elapsed())
}

func (r *run) isActive(m *store.Member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.active, m)
}

// members returns those that should serve.
func (r *run) members() []*store.Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.active)
}

// replace takes one out of those that should serve, and another one in. Either may be nil.
func (r *run) replace(out, in *store.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active = slices.DeleteFunc(r.active, func(m *store.Member) bool { return m == out })
	if in != nil {
		r.active = append(r.active, in)
	}
}

// pick returns a member that runs, nil when none does: any one by chance, the first one without
// rnd.
func (r *run) pick(rnd *rand.Rand) *store.Member {
	running := slices.DeleteFunc(r.members(), func(m *store.Member) bool { return !m.Running() })
	switch {
	case len(running) == 0:
		return nil
	case rnd == nil:
		return running[0]
	}
	return running[rnd.IntN(len(running))]
}

// await is pick for the clients of a History, which need some server: a member that does not run
// fails their operations at once.
func (r *run) await(rnd *rand.Rand, prefix string) server {
	m := r.pick(rnd)
	if m == nil {
		m = r.group.Members()[0]
	}
	return server{m, prefix}
}

// keep puts the evidence aside.
func (r *run) keep() {
	path, err := r.group.Keep()
	if err != nil {
		r.Say("could not keep the data and the logs: %v", err)
		return
	}
	r.Say("data and logs of all members are in %s", path)
}
