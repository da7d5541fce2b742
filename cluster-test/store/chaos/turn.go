package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
	"github.com/barque/barque/raftstore/storetest"
)

// faultsPerTurn is how many faults one turn sees. It must not grow with the length of the run.
const faultsPerTurn = 6

// turn is the work that is judged at once.
type turn struct {
	*run
	record    *check.Record
	base      uint64             // the record begins after this revision
	newest    atomic.Uint64      // in an answer to a reader or a writer
	registers *storetest.History // single keys, for the search for an order
	watchers  []*watcher
	reads     atomic.Int64
}

// turn makes some faults, from a number on, while clients work; judges the answers to them and to
// the watchers; and reports whether there are more faults. last is the record of the turn before.
func (r *run) turn(ctx context.Context, last *check.Record, number *int) (record *check.Record, more bool) {
	t := &turn{run: r, registers: storetest.NewHistory()}
	t.registers.Prefix = fmt.Sprintf("/reg/%d/", *number)
	if err := t.begin(last); err != nil {
		r.Fail("begin a turn: %v", err)
		return nil, false
	}
	clients, stopClients := context.WithCancel(context.Background())
	watching, stopWatchers := context.WithCancel(context.Background())
	var working, watchers sync.WaitGroup
	defer func() { // also when the faults panic
		stopClients()
		stopWatchers()
		working.Wait()
		watchers.Wait()
	}()
	began := r.Elapsed()
	t.work(clients, &working, uint64(*number))
	t.watch(watching, &watchers)
	for n := 0; n < faultsPerTurn && !r.Failed(); n++ {
		if n > 0 && r.over(ctx, *number) {
			break
		}
		r.inject(*number)
		*number++
	}
	r.Writing(began)
	stopClients()
	working.Wait()
	if r.Failed() {
		return nil, false
	}
	end, ok := t.finish()
	stopWatchers()
	watchers.Wait()
	if ok {
		t.judge(end)
	}
	return t.record, !r.over(ctx, *number)
}

// begin reads the state that the record begins with.
func (t *turn) begin(last *check.Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	leader, err := t.group.AwaitLeader(ctx)
	if err != nil {
		return err
	}
	items, revision, err := leader.List(ctx, member.ListArgs{})
	if err != nil {
		return err
	}
	t.record, t.base = check.NewRecordAt(revision, items, hashed), revision
	t.newest.Store(revision)
	if last != nil {
		t.record.Follow(last)
	}
	return nil
}

// work starts the clients.
func (t *turn) work(ctx context.Context, working *sync.WaitGroup, number uint64) {
	for _, w := range t.writers {
		working.Go(func() { w.work(ctx, t) })
	}
	for i := range 3 {
		rd := &reader{turn: t, rnd: t.cfg.Rand(fmt.Sprintf("reader %d of %d", i, number))}
		working.Go(func() { rd.work(ctx) })
	}
	for c := range 4 {
		rnd := t.cfg.Rand(fmt.Sprintf("register %d of %d", c, number))
		working.Go(func() {
			t.registers.Client(ctx, t.cfg.Seed+number, 4,
				func() storetest.Server { return t.await(rnd, t.registers.Prefix) })
		})
	}
}

// watch starts watchers: of everything on each member, of everything and of a part wherever there
// is a member.
func (t *turn) watch(ctx context.Context, watchers *sync.WaitGroup) {
	follow := func(name, prefix string, pick func() *store.Member) {
		w := &watcher{turn: t, name: name, prefix: prefix, pick: pick}
		w.last.Store(t.base)
		t.watchers = append(t.watchers, w)
		watchers.Go(func() { w.work(ctx) })
	}
	for _, m := range t.group.Members() {
		follow("of everything on "+m.Name, "", func() *store.Member {
			if t.isActive(m) {
				return m
			}
			return t.pick(nil) // it is not a member now
		})
	}
	for _, prefix := range []string{"", "/pair/", "/reg/"} {
		rnd := t.cfg.Rand("watcher of " + prefix)
		follow("that moves, of "+prefix, prefix, func() *store.Member { return t.pick(rnd) })
	}
}

// finish waits, when the clients have ended, until all members have the same state and all watchers
// have come to it. It returns the revision, and whether that came about.
func (t *turn) finish() (revision uint64, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := t.equal(ctx, &revision)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fail("the members did not come to the same state in %v: %v", patience, err)
			return 0, false
		}
		schedule.Pause(ctx, 50*time.Millisecond)
	}
	for _, w := range t.watchers {
		for w.last.Load() < revision && ctx.Err() == nil {
			schedule.Pause(ctx, 10*time.Millisecond)
		}
		if last := w.last.Load(); last < revision {
			t.Fail("the watcher %s came to revision %d of %d in %v", w.name, last, revision, patience)
			return 0, false
		}
	}
	return revision, true
}

// equal compares the state of all members, at one revision, and records it. Keys expire all the
// while, so that it may take several tries until all are at the same revision.
func (t *turn) equal(ctx context.Context, revision *uint64) error {
	*revision = 0
	hash := ""
	for _, m := range t.members() {
		if err := t.serves(ctx, m); err != nil {
			return err
		}
		status, _, err := m.Status(ctx)
		if err != nil {
			return err
		}
		if *revision == 0 {
			*revision, hash = status.Revision, status.StateHash
		}
		if status.Revision != *revision {
			return fmt.Errorf("%s is at revision %d, another one at %d", m.Name, status.Revision, *revision)
		}
		if status.StateHash != hash {
			t.Fail("at revision %d %s has the state %s, another one has %s", *revision, m.Name, status.StateHash, hash)
		}
	}
	for _, m := range t.members() {
		read := t.read(m, check.At)
		read.Asked = *revision
		items, got, err := m.List(ctx, member.ListArgs{View: raftstore.ViewOptions{Revision: *revision}})
		if err != nil {
			return err
		}
		t.record.Read(read, view{got, items})
	}
	return nil
}

// read is a read that begins now. A member may be started again at any time, so that no two reads
// are of the same life of one.
func (t *turn) read(m *store.Member, kind check.ReadKind) check.Read {
	return check.Read{Server: m.Index, Life: int(t.reads.Add(1)), Kind: kind, Call: t.record.Now()}
}

// told notes that a client's answer had a revision.
func (t *turn) told(revision uint64) {
	for newest := t.newest.Load(); revision > newest &&
		!t.newest.CompareAndSwap(newest, revision); newest = t.newest.Load() {
	}
}

// judge holds all answers against their history, to whose end all watchers have come.
func (t *turn) judge(end uint64) {
	for _, w := range t.watchers {
		if w.watch != nil {
			w.watch.MustReach = end
		}
	}
	var violations []string
	for _, v := range t.record.Verdict(check.Options{HistoryOnly: true}) {
		violations = append(violations, v.String())
	}
	if len(violations) > 0 {
		t.Fail("what clients and watchers were told is wrong:\n  %s", strings.Join(violations, "\n  "))
	}
	if err := t.registers.Verify(patience); err != nil {
		t.Fail("%v", err)
	}
	t.judged.Add(t.record.Counts())
}
