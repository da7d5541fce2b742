package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// sickDisk is a log that can be made to hang, and to be slow.
type sickDisk struct {
	logstore.Store

	mu   sync.Mutex
	well chan struct{} // closed when it does not hang any more; nil when it does not
	slow time.Duration
}

func (d *sickDisk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.well = make(chan struct{})
}

func (d *sickDisk) recover() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.well != nil {
		close(d.well)
		d.well = nil
	}
}

func (d *sickDisk) slowDown(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = by
}

func (d *sickDisk) wait() {
	d.mu.Lock()
	well, slow := d.well, d.slow
	d.mu.Unlock()
	if slow > 0 {
		<-time.After(slow)
	}
	if well != nil {
		<-well
	}
}

func (d *sickDisk) StoreLog(entry *raft.Log) error { return d.StoreLogs([]*raft.Log{entry}) }

func (d *sickDisk) StoreLogs(entries []*raft.Log) error {
	d.wait()
	return d.Store.StoreLogs(entries)
}

func (d *sickDisk) Set(key, value []byte) error {
	d.wait()
	return d.Store.Set(key, value)
}

func (d *sickDisk) SetUint64(key []byte, value uint64) error {
	d.wait()
	return d.Store.SetUint64(key, value)
}

func (d *sickDisk) DeleteRange(first, last uint64) error {
	d.wait()
	return d.Store.DeleteRange(first, last)
}

// sickbay is a group of servers whose disks can hang.
type sickbay struct {
	net   *memnet.Network
	t     *testing.T
	ctx   context.Context // ends after an hour of virtual time
	nodes []*Node
	hosts []*memnet.Host
	disks []*sickDisk
	seq   atomic.Uint64
	base  uint64 // revision at the beginning
	done  atomic.Uint64
}

func newSickbay(t *testing.T, size int) *sickbay {
	return newSickbayWith(t, size, group.Timeouts{PromoteAfter: time.Millisecond})
}

func newSickbayWith(t *testing.T, size int, timeouts group.Timeouts) *sickbay {
	return newSickbayOf(t, size, func(cfg *Config) { cfg.Timeouts = timeouts })
}

func newSickbayOf(t *testing.T, size int, edit func(*Config)) *sickbay {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	s := &sickbay{t: t, ctx: ctx}
	network := new(memnet.Network)
	s.net = network
	for i := range size {
		disk, host := new(sickDisk), network.Host(fmt.Sprintf("s%d:1", i))
		cfg := Config{
			Name: fmt.Sprintf("s%d", i), InMemory: true, Bootstrap: i == 0, ClusterID: "test", Stream: host,
			WrapLog: func(s logstore.Store) logstore.Store {
				disk.Store = s
				return disk
			},
		}
		edit(&cfg)
		n, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			disk.recover()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		s.nodes, s.hosts, s.disks = append(s.nodes, n), append(s.hosts, host), append(s.disks, disk)
		for i > 0 && n.Join(s.ctx, []string{"s0:1"}) != nil {
			<-time.After(10 * time.Millisecond)
		}
	}
	s.await("all vote", func() bool { return s.nodes[0].voters() == size })
	s.base = s.nodes[s.leader(-1)].state.Revision()
	return s
}

func (s *sickbay) await(what string, holds func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not in time: %s", what)
		}
	}
}

// leader returns a server that leads and is not the given one.
func (s *sickbay) leader(not int) int {
	s.t.Helper()
	found := -1
	s.await("a leader", func() bool {
		for i, n := range s.nodes {
			if i != not && n.leader.Term() != 0 {
				found = i
			}
		}
		return found >= 0
	})
	return found
}

func (s *sickbay) request() *command.Request {
	seq := s.seq.Add(1)
	return &command.Request{
		ID: command.ID{Origin: 7, Seq: seq}, Kind: command.KindTxn,
		Txn: kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: fmt.Sprintf("/%d", seq)}}},
	}
}

// write brings a request into effect, as the store's front does: under one identity, until there is
// an answer.
func (s *sickbay) write(i int) error {
	req := s.request()
	for end := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		outcome, err := s.nodes[i].Propose(s.ctx, req)
		switch {
		case err == nil && outcome.Code == command.Applied:
			s.done.Add(1)
			return nil
		case err == nil:
			return fmt.Errorf("outcome %+v", outcome)
		case !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrUnknownOutcome), time.Now().After(end):
			return err
		}
	}
}

// check fails unless all servers come to the same state, in which each acknowledged write took
// effect, once.
func (s *sickbay) check() {
	s.t.Helper()
	want := s.base + s.done.Load()
	s.await("all writes on all servers", func() bool {
		for _, n := range s.nodes {
			if n.state.Revision() < want {
				return false
			}
		}
		return true
	})
	hash := s.nodes[0].Status().StateHash
	for i, n := range s.nodes {
		status := n.Status()
		if status.Revision != want || status.Keys != int(s.done.Load()) || status.StateHash != hash ||
			status.DiskError != "" {
			s.t.Errorf("server %d is at revision %d with %d keys, want %d with %d; state %s, want %s; disk %q",
				i, status.Revision, status.Keys, want, s.done.Load(), status.StateHash, hash, status.DiskError)
		}
	}
}

func TestLeaderWhoseDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		sick := s.leader(-1)
		well := (sick + 1) % 3
		leading, _, err := s.nodes[sick].AwaitLeadership(s.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.write(well); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.disks[sick].hang()
		var clients sync.WaitGroup
		for range 20 { // through one that forwards; some are in the entry that hangs, some wait for the next
			clients.Go(func() {
				if err := s.write(well); err != nil {
					t.Error(err)
				}
			})
			<-time.After(time.Millisecond)
		}
		// At the sick server itself: more entries than may be under way, so the last ones were not
		// proposed.
		unknown, unavailable := 0, 0
		var mu sync.Mutex
		for range 20 {
			clients.Go(func() {
				req := s.request()
				_, err := s.nodes[sick].Propose(s.ctx, req)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, kv.ErrUnavailable) && errors.Is(err, logstore.ErrHangs):
					unavailable++
				case errors.Is(err, kv.ErrUnknownOutcome) && errors.Is(err, logstore.ErrHangs):
					unknown++
				default:
					t.Errorf("a write on the sick leader: %v", err)
				}
			})
			<-time.After(time.Millisecond)
		}
		clients.Wait()
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("writes went on after %v", took)
		}
		next := s.leader(sick)
		if !errors.Is(context.Cause(leading), logstore.ErrHangs) {
			t.Errorf("leadership ended with %v", context.Cause(leading))
		}
		if unknown+unavailable != 20 || unavailable == 0 {
			t.Errorf("%d writes with an unknown outcome, %d that were not proposed", unknown, unavailable)
		}
		<-time.After(time.Minute) // no matter how long
		if status := s.nodes[sick].Status(); status.DiskError == "" || status.Role != "follower" {
			t.Errorf("the sick server says: %+v", status)
		}
		if again := s.leader(sick); again != next {
			t.Errorf("server %d leads and then server %d", next, again)
		}
		s.disks[sick].recover()
		for i := range 3 {
			if err := s.write(i); err != nil {
				t.Fatal(err)
			}
		}
		// Of the writes whose outcome was unknown none can be repeated by now, and none took
		// effect.
		s.check()
		if again := s.leader(-1); again != next {
			t.Errorf("server %d leads and then server %d", next, again)
		}
		if status := s.nodes[sick].Status(); status.Role != "follower" {
			t.Errorf("the recovered server says: %+v", status)
		}
	})
}

// A write that ends when the limit does: the nominated server may have a shorter log by then, and
// is not elected. The next election brings a leader. Two servers that campaigned in it would not:
// Raft keeps the one that loses a candidate, and leaderless, until its time-out.
func TestLeaderWhoseDiskHangsForAMoment(t *testing.T) {
	limit := group.Timeouts{}.WithDefaults().DiskWrite
	for _, more := range []time.Duration{-time.Millisecond, 0, time.Millisecond, 3 * time.Millisecond} {
		for round := range 16 {
			synctest.Test(t, func(t *testing.T) {
				s := newSickbay(t, 3)
				sick := s.leader(-1)
				well := (sick + 1) % 3
				for _, disk := range s.disks {
					disk.slowDown(20 * time.Millisecond)
				}
				<-time.After(time.Duration(37*round) * time.Millisecond)
				began := time.Now()
				s.disks[sick].hang()
				time.AfterFunc(limit+more, s.disks[sick].recover)
				if err := s.write(well); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > limit+1500*time.Millisecond { // in virtual time
					t.Errorf("a hang of %v stopped writes for %v", limit+more, took)
				}
				<-time.After(time.Minute) // until no election is under way
				s.check()
			})
		}
	}
}

func TestFollowerWhoseDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		sick := (leader + 1) % 3
		term := s.nodes[leader].leader.Term()
		s.disks[sick].hang()
		for range 100 {
			for i := range 3 { // the sick one forwards
				began := time.Now()
				if err := s.write(i); err != nil || time.Since(began) > 200*time.Millisecond {
					t.Fatalf("a write through server %d took %v: %v", i, time.Since(began), err)
				}
			}
			<-time.After(100 * time.Millisecond)
		}
		if s.nodes[sick].Status().DiskError == "" {
			t.Error("nobody knows that a disk hangs")
		}
		s.disks[sick].recover()
		s.check()
		<-time.After(10 * time.Second)
		if now := s.nodes[leader].leader.Term(); now != term {
			t.Errorf("the leader of term %d is in term %d", term, now)
		}
	})
}

func TestALeaderWithASlowDiskLeadsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		term := s.nodes[leader].leader.Term()
		s.disks[leader].slowDown(1900 * time.Millisecond)
		var clients sync.WaitGroup
		for i := range 3 {
			clients.Go(func() {
				for range 20 {
					if err := s.write(i); err != nil {
						t.Error(err)
					}
				}
			})
		}
		clients.Wait()
		if now := s.nodes[leader].leader.Term(); now != term {
			t.Errorf("the leader of term %d is in term %d", term, now)
		}
		s.check()
	})
}

// TestOnlyServerWhoseDiskHangs: no other can take its place, so it leads again when it can.
func TestOnlyServerWhoseDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 1)
		leading, term, err := s.nodes[0].AwaitLeadership(s.ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.disks[0].hang()
		began := time.Now()
		if _, err := s.nodes[0].Propose(s.ctx, s.request()); !errors.Is(err, kv.ErrUnknownOutcome) {
			t.Errorf("a write: %v", err)
		}
		s.done.Add(1) // it is in the log, and comes into effect
		<-leading.Done()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it led for %v", took)
		}
		if _, err := s.nodes[0].Propose(s.ctx, s.request()); !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("the next write: %v", err)
		}
		s.disks[0].recover()
		if _, again, err := s.nodes[0].AwaitLeadership(s.ctx); err != nil || again != term {
			t.Errorf("after term %d: term %d, %v", term, again, err)
		}
		if err := s.write(0); err != nil {
			t.Fatal(err)
		}
		s.check()
	})
}

// TestDisksThatHangNowAndThen lets any of the disks hang, also a majority or all at once, for less
// and for longer than the limit, while clients write.
func TestDisksThatHangNowAndThen(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		rnd := rand.New(rand.NewPCG(seed, 1))
		stop := make(chan struct{})
		var clients sync.WaitGroup
		for i := range 6 {
			clients.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
					if err := s.write(i % 3); err != nil {
						t.Errorf("server %d: %v", i%3, err)
					}
				}
			})
		}
		terms := map[uint64]bool{}
		rounds := 30
		if testing.Short() {
			rounds = 10
		}
		// Where chance spares the leader's disk nothing happens: then it goes on for longer.
		for round := 0; round < rounds || len(terms) < 3 && round < 10*rounds; round++ {
			terms[s.nodes[s.leader(-1)].leader.Term()] = true
			for i := range s.disks {
				if rnd.IntN(2) == 0 {
					s.disks[i].hang()
				}
			}
			<-time.After(time.Duration(rnd.IntN(int(10 * time.Second))))
			for i := range s.disks {
				s.disks[i].recover()
				<-time.After(time.Duration(rnd.IntN(int(100 * time.Millisecond))))
			}
		}
		close(stop)
		clients.Wait()
		s.check()
		if len(terms) < 3 {
			t.Errorf("only %d terms: the faults had no effect", len(terms))
		}
	})
}
