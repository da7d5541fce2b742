package mvcc

import (
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
