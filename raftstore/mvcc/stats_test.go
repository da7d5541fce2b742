package mvcc

import "testing"

// TestOldestOfHistory asks for the time of the oldest revision, which is that of its command, also
// when it came with a snapshot.
func TestOldestOfHistory(t *testing.T) {
	const began, hour = 1_700_000_000_000, 3_600_000
	s := New(Limits{})
	oldest := func(what string, s *Store, want int64) {
		t.Helper()
		if got := s.Stats().Oldest; got != want {
			t.Errorf("%s: the oldest revision is of %d, want %d", what, got, want)
		}
	}
	oldest("nothing", s, 0)
	put(s, "/k", began)
	oldest("one revision", s, began)
	put(s, "/k", began+hour)
	oldest("two", s, began)
	loaded := New(Limits{})
	if err := transfer(s, loaded, 1<<30); err != nil {
		t.Fatal(err)
	}
	oldest("from a snapshot", loaded, began)
	put(loaded, "/k", began+2*hour)
	oldest("and another", loaded, began)
	s.Compact(1)
	s.Publish()
	oldest("compacted", s, began+hour)
}
