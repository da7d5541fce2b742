package mvcc

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// TestWritesConcernOnlyTheirWatchers writes where few of many watchers look: the others are not
// woken, get nothing to skip, and do not make the look-up longer.
func TestWritesConcernOnlyTheirWatchers(t *testing.T) {
	s := New(Limits{})
	watch := func(prefix string) {
		w, err := s.Watch(kv.WatchOptions{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
	}
	for i := range 1000 {
		watch(fmt.Sprintf("/elsewhere/%04d/", i))
	}
	watch("/here/")
	watch("/here/") // shares the route
	if len(s.log.routes) != 1001 || !slices.Equal(s.log.lengths, []int{len("/here/"), len("/elsewhere/0000/")}) {
		t.Fatalf("%d routes, of prefixes with lengths %v", len(s.log.routes), s.log.lengths)
	}
	for what, c := range map[string]struct {
		keys []string
		want []string
	}{
		"one key":          {[]string{"/here/a"}, []string{"/here/"}},
		"several keys":     {[]string{"/here/a", "/here/b", "/nowhere"}, []string{"/here/"}},
		"for others":       {[]string{"/here/c", "/elsewhere/0007/c"}, []string{"/elsewhere/0007/", "/here/"}},
		"nobody's":         {[]string{"/nowhere"}, nil},
		"between prefixes": {[]string{"/elsewhere/"}, nil},
	} {
		changed, length := make(map[string]<-chan struct{}), make(map[string]int)
		for prefix, r := range s.log.routes {
			changed[prefix], length[prefix] = r.changed.wait(), len(r.entries)
		}
		txn := kv.Txn{}
		for _, key := range c.keys {
			txn.Ops = append(txn.Ops, kv.Op{Kind: kv.Put, Key: key, Value: []byte(what)})
		}
		s.Apply(&txn, 1, 0)
		s.Publish()
		var woken, longer []string
		for prefix, r := range s.log.routes {
			select {
			case <-changed[prefix]:
				woken = append(woken, prefix)
			default:
			}
			if len(r.entries) > length[prefix] {
				longer = append(longer, prefix)
			}
		}
		slices.Sort(woken)
		slices.Sort(longer)
		if !slices.Equal(woken, c.want) || !slices.Equal(longer, c.want) {
			t.Errorf("%s: wakes the watchers of %d prefixes and is in %d routes, %.100q and %.100q; want %q",
				what, len(woken), len(longer), woken[:min(3, len(woken))], longer[:min(3, len(longer))], c.want)
		}
	}
}

// TestAFutureOutlivesCompaction: a server that has come up replays its log, with the compactions in
// it. A watcher of a revision that the server has not reached yet may have read none of that
// before it is dropped, and wants none of it.
func TestAFutureOutlivesCompaction(t *testing.T) {
	s := New(Limits{})
	watch := func(after uint64) kv.Watcher {
		w, err := s.Watch(kv.WatchOptions{Prefix: "/", After: after})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w
	}
	publish := func(revisions int, compacted uint64) {
		for range revisions {
			value := fmt.Append(nil, s.Revision())
			s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: "/a", Value: value}}}, 1, 0)
		}
		s.Compact(compacted)
		s.Publish()
	}
	publish(1, 0)
	late, before, at := watch(5), watch(8), watch(10)
	publish(9, 8)
	if batch, err := before.Next(t.Context()); err != nil || batch.Revision != 9 {
		t.Errorf("after revision 8 comes %d, %v", batch.Revision, err)
	}
	if batch, ok := at.Poll(); ok {
		t.Errorf("after the newest revision, 10, comes %d", batch.Revision)
	}
	publish(1, 8)
	if batch, err := at.Next(t.Context()); err != nil || batch.Revision != 11 {
		t.Errorf("after revision 10 comes %d, %v", batch.Revision, err)
	}
	if batch, err := late.Next(t.Context()); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a watcher that has missed three revisions gets %d, %v", batch.Revision, err)
	}
}
