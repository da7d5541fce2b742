package mvcc

import (
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// TestHistoryWithClocksThatJump writes once a second, and changes what the clock of the leader says meanwhile.
// History has to hold what was written in the last ten minutes, and nothing that is much older.
func TestHistoryWithClocksThatJump(t *testing.T) {
	const minute = 60_000
	for what, offset := range map[string]func(i int) int64{
		"right":   func(int) int64 { return 0 },
		"ahead":   func(i int) int64 { return int64(i/1500) * 40 * minute },
		"behind":  func(i int) int64 { return -int64(i/1500) * 40 * minute },
		"a year":  func(i int) int64 { return int64(i/1500) * 365 * 24 * 60 * minute },
		"to, fro": func(i int) int64 { return int64(i/1500%2) * 25 * minute },
	} {
		t.Run(what, func(t *testing.T) {
			s := New(Limits{})
			for i := range 6000 {
				put(s, "/k", int64(1_700_000_000_000+i*1000)+offset(i))
				held := s.Revision() - s.Stats().Compacted
				if least := min(i+1, 550); held < uint64(least) || held > 660 {
					t.Fatalf("after %d s history holds %d revisions, want from %d to 660", i, held, least)
				}
				if i == 1600 { // shortly after a jump
					s = reloaded(t, s)
				}
			}
		})
	}
}

// TestHistoryOfAQuietStore: time in which nothing is written does not push the newest revisions out at once.
func TestHistoryOfAQuietStore(t *testing.T) {
	s := New(Limits{})
	for i := range 100 {
		put(s, "/k", int64(i)*3_600_000)
	}
	if held := s.Revision() - s.Stats().Compacted; held < 10 || held > 30 {
		t.Errorf("history holds %d revisions", held)
	}
}

// TestOldestOfHistory asks for the time of the oldest revision, which is that of its command; of one that came with a
// snapshot, silences before it count as they do for its age.
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
	step := s.limits.HistoryAge / stepsPerAge
	loaded := reloaded(t, s)
	oldest("from a snapshot", loaded, began+hour-step)
	put(loaded, "/k", began+2*hour)
	oldest("and another", loaded, began+hour-step)
	s.Compact(1)
	s.Publish()
	oldest("compacted", s, began+hour)
}

// reloaded returns a store with the state and the history of another one.
func reloaded(t *testing.T, from *Store) *Store {
	t.Helper()
	to := New(from.limits)
	v, history := from.Latest(), from.History(1<<30)
	err := to.Load(Origin{Revision: v.Revision(), Now: from.Now(), Hash: v.Hash()},
		func(yield func(*kv.Item)) error {
			v.Ascend("", "", func(item kv.Item) bool { yield(&item); return true })
			return nil
		},
		func(yield func(kv.Undo) error) (err error) {
			history(func(u kv.Undo) bool { err = yield(u); return err == nil })
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	return to
}
