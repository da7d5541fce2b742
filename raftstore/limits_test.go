package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

func filler(key string, bytes int) raftstore.Txn {
	return raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: make([]byte, bytes)}}}
}

// TestBoundariesOfLimits tries each limit at its last byte, and one above.
func TestBoundariesOfLimits(t *testing.T) {
	s := raftstore.NewInMemory(raftstore.Options{Limits: raftstore.Limits{
		KeyBytes: 10, ValueBytes: 100, TxnBytes: 250, TxnOps: 4,
	}})
	defer s.Close()
	key := strings.Repeat("k", 10)
	ops := func(values ...int) (txn raftstore.Txn) {
		for i, n := range values {
			txn.Ops = append(txn.Ops, raftstore.Op{Kind: raftstore.Put, Key: fmt.Sprint(i), Value: make([]byte, n)})
		}
		return txn
	}
	requiring := ops(100, 100)
	requiring.Require = []raftstore.Precondition{{Key: "12345678"}}
	for what, c := range map[string]struct {
		fits, not raftstore.Txn
	}{
		"key":   {filler(key, 1), filler(key+"k", 1)},
		"value": {filler("v", 100), filler("v", 101)},
		"sum":   {ops(100, 100, 47), ops(100, 100, 48)},
		"sum with key": {ops(100, 100, 40-3),
			func() raftstore.Txn { x := ops(100, 100, 40); x.Require = requiring.Require; return x }()},
		"count": {ops(1, 1, 1, 1), ops(1, 1, 1, 1, 1)},
	} {
		if _, err := s.Commit(t.Context(), c.fits); err != nil {
			t.Errorf("%s at its limit: %v", what, err)
		}
		before := s.Revision()
		if _, err := s.Commit(t.Context(), c.not); !errors.Is(err, raftstore.ErrTooLarge) || s.Revision() != before {
			t.Errorf("%s above its limit: %v", what, err)
		}
	}
}

// TestFullStore fills a store of three servers whose limits differ, and empties it again.
func TestFullStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 200_000
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			cfg.Limits.StateBytes = int64(limit << i) // that of the leader counts
		})
		ctx := limited(t)
		if leader, _ := c.Leader(); leader != 0 {
			t.Fatal("server 0 should lead")
		}
		follower := c.Servers[1]
		commit := func(txn raftstore.Txn) error { _, err := follower.Commit(ctx, txn); return err }
		keys := 0
		for ; ; keys++ {
			err := commit(filler(fmt.Sprintf("/k%03d", keys), 1000))
			var full *raftstore.NoSpaceError
			if errors.As(err, &full) {
				if !errors.Is(err, raftstore.ErrNoSpace) || errors.Is(err, raftstore.ErrUnavailable) ||
					full.Limit != limit || full.Size > limit || full.Size+full.Needed <= limit {
					t.Fatalf("%+v: %v", full, err)
				}
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if want := limit / (1000 + len("/k000") + raftstore.ItemOverhead); keys != want {
			t.Errorf("%d keys went in, want %d", keys, want)
		}
		<-time.After(2 * time.Second) // virtual: the alarm follows
		for i, s := range c.Servers {
			if st := s.Status(); st.Space != "full" || st.StateLimit != limit ||
				st.StateBytes != c.Servers[0].Status().StateBytes {
				t.Errorf("server %d: %q, %d of %d bytes", i, st.Space, st.StateBytes, st.StateLimit)
			}
		}
		two := filler("/k001", 1100)
		two.Ops = append(two.Ops, raftstore.Op{Kind: raftstore.Delete, Key: "/k002"})
		for _, step := range []struct {
			what string
			txn  raftstore.Txn
			fits bool
		}{
			{"the same again", filler("/k000", 1000), true},
			{"a little more, into the reserve", filler("/k000", 6000), true},
			{"much more", filler("/k003", 20_000), false},
			{"a new key that takes no room at all", filler("/new", 0), false},
			{"one grows and another goes", two, true},
			{"smaller", filler("/k004", 10), true},
			{"over the reserve", filler("/k005", 1000+limit/16), false},
			{"delete what is not there", raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Delete, Key: "/none"}}},
				true},
		} {
			if err := commit(step.txn); (err == nil) != step.fits ||
				err != nil && !errors.Is(err, raftstore.ErrNoSpace) {
				t.Errorf("%s: %v", step.what, err)
			}
		}
		if err := follower.Compact(ctx, follower.Revision()); err != nil {
			t.Errorf("Compact: %v", err)
		}
		for i := range keys / 3 {
			if err := commit(
				raftstore.Txn{
					Ops: []raftstore.Op{{Kind: raftstore.Delete, Key: fmt.Sprintf("/k%03d", i)}}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := commit(filler("/new", 1000)); err != nil {
			t.Errorf("as soon as there is room: %v", err)
		}
		<-time.After(2 * time.Second)
		for i, s := range c.Servers {
			if st := s.Status(); st.Space != "" {
				t.Errorf("server %d: the alarm stays: %q", i, st.Space)
			}
		}
		c.Await("equal states", func() bool { return sameState(c) })
	})
}

// TestLimitsOfLeadersDiffer lets leadership go round while a full store is written to. The servers
// have different limits and must agree all the time.
func TestLimitsOfLeadersDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			cfg.Limits.StateBytes = int64(50_000 * (i + 1))
		})
		ctx := limited(t)
		rnd, refused := rand.New(rand.NewPCG(1, 1)), 0
		for i := range 600 {
			if i%100 == 99 {
				leader, _ := c.Leader()
				if err := c.Servers[leader].TransferLeadership(ctx, ""); err != nil {
					t.Fatal(err)
				}
			}
			_, err := c.Servers[i%3].Commit(ctx, filler(fmt.Sprintf("/%d", rnd.IntN(200)), rnd.IntN(2000)))
			if errors.Is(err, raftstore.ErrNoSpace) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if refused < 50 {
			t.Errorf("%d writes were refused: this shows nothing", refused)
		}
		c.Await("equal states", func() bool { return sameState(c) })
	})
}

// TestCompactUnderReaders compacts again and again while views are read page by page and others are
// made in history. A view that was had stays whole, and the others are had or are compacted.
func TestCompactUnderReaders(t *testing.T) {
	s := raftstore.NewInMemory(raftstore.Options{})
	defer s.Close()
	ctx := limited(t)
	const keys = 300
	for i := range keys {
		if _, err := s.Commit(ctx, put(fmt.Sprintf("/%03d", i), "0")); err != nil {
			t.Fatal(err)
		}
	}
	writing, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		for i := 1; writing.Err() == nil; i++ {
			if _, err := s.Commit(ctx, put(fmt.Sprintf("/%03d", i%keys), fmt.Sprint(i))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	all.Go(func() {
		for writing.Err() == nil {
			if err := s.Compact(ctx, max(s.Revision()-10, keys-1)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var reading sync.WaitGroup
	for r := range 4 {
		reading.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(r), 5))
			had := 0
			for range 300 {
				revision := max(s.Revision()-uint64(rnd.IntN(15)), keys)
				v, err := s.View(ctx, raftstore.ViewOptions{Revision: revision})
				if errors.Is(err, raftstore.ErrCompacted) {
					continue
				}
				if err != nil || v.Revision() != revision {
					t.Errorf("View at %d: %v", revision, err)
					return
				}
				had++
				n, newest := 0, uint64(0)
				for from := ""; ; { // pages of 50
					page := 0
					v.Ascend("/", from, func(item raftstore.Item) bool {
						page, from, newest = page+1, item.Key+"\x00", max(newest, item.ModRevision)
						return page < 50
					})
					if n += page; page < 50 {
						break
					}
				}
				if n != keys || newest != revision {
					t.Errorf("the view at %d has %d keys, the newest of %d", revision, n, newest)
					return
				}
			}
			if had < 20 {
				t.Errorf("only %d views were had", had)
			}
		})
	}
	reading.Wait()
	stop()
	all.Wait()
}

// TestLimitsThatCannotBeKept: a server refuses them when it is opened, not some transaction of them
// later.
func TestLimitsThatCannotBeKept(t *testing.T) {
	for _, c := range []struct {
		limits raftstore.Limits
		name   string
		want   string
	}{
		{limits: raftstore.Limits{ValueBytes: 1 << 30}, want: "ValueBytes"},
		{limits: raftstore.Limits{KeyBytes: 1 << 62, ValueBytes: 1 << 62}, want: "KeyBytes"},
		{limits: raftstore.Limits{TxnBytes: 9 << 20}, want: "TxnBytes is 9437184"},
		{limits: raftstore.Limits{TxnBytes: 1 << 20}, want: "less than a key"},
		{limits: raftstore.Limits{TxnOps: 1 << 20}, want: "TxnOps"},
		{name: strings.Repeat("n", 254), want: "Name has 254 bytes"},
	} {
		s, err := raftstore.Open(raftstore.Config{
			Name: c.name, Limits: c.limits, InMemory: true, Bootstrap: true, Stream: new(memnet.Network).Host("alone"),
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, it should name %s", c, err, c.want)
		}
		if s != nil {
			s.Close()
		}
	}
	s, err := raftstore.Open(raftstore.Config{
		Name: strings.Repeat("n", 253), Limits: raftstore.Limits{ValueBytes: 6 << 20}, InMemory: true, Bootstrap: true,
		Stream: new(memnet.Network).Host("alone"),
	})
	if err != nil {
		t.Fatalf("a value that needs a larger transaction than the default: %v", err)
	}
	defer s.Close()
	if _, err := s.Commit(limited(t), filler("/a", 6<<20)); err != nil {
		t.Errorf("the largest value: %v", err)
	}
}
