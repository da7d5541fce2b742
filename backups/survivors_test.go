package backups

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
)

func TestChooseTheNewest(t *testing.T) {
	member := []raftstore.Member{{Name: "s1", Self: true}, {Name: "s2"}}
	at := func(dir string, term, index uint64, change func(*Survivor)) Survivor {
		s := Survivor{Name: dir, DataDir: dir,
			Report: &raftstore.Report{ClusterID: "c", LastTerm: term, LastIndex: index, Members: member}}
		if change != nil {
			change(&s)
		}
		return s
	}
	for name, c := range map[string]struct {
		all  []Survivor
		want string
		best string // the recommendation; empty for none
	}{
		"one":          {[]Survivor{at("a", 1, 5, nil)}, "", "a"},
		"as good":      {[]Survivor{at("a", 1, 5, nil), at("b", 1, 5, nil)}, "", "a"},
		"more entries": {[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, nil)}, "b has more", "b"},
		"a later term": {[]Survivor{at("a", 1, 5, nil), at("b", 2, 3, nil)}, "b has more", "b"},
		"more, but wrong": {
			[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, func(s *Survivor) { s.Quarantined = "it differs" })}, "", "a"},
		"wrong itself": {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Quarantined = "it differs" })},
			"known to be wrong", ""},
		"taken out": {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Removed = &raftstore.Removal{} })},
			"taken out", ""},
		"not a member yet": {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Members = nil })}, "not of a member", ""},
		"the only voter": {
			[]Survivor{
				at("a", 1, 5,
					func(
						s *Survivor,
					) {
						s.Members = []raftstore.Member{{Name: "s1", Self: true, Voter: true}, {Name: "s2"}}
					})}, "start it", ""},
		"one of two voters": {[]Survivor{at("a", 1, 5, func(s *Survivor) {
			s.Members = []raftstore.Member{{Name: "s1", Self: true, Voter: true}, {Name: "s2", Voter: true}}
		})}, "", "a"},
		"wrong itself, and another one": {
			[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Quarantined = "it differs" }), at("b", 1, 4, nil)},
			"known to be wrong", "b"},
		"taken out, and newer than the rest": {
			[]Survivor{at("a", 2, 9, func(s *Survivor) { s.Removed = &raftstore.Removal{} }), at("b", 1, 4, nil),
				at("c", 1, 5, nil)}, "taken out", "c"},
		"the rest is not a member yet": {
			[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, func(s *Survivor) { s.Members = nil })}, "", "a"},
		"the newest votes alone": {[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, func(s *Survivor) {
			s.Members = []raftstore.Member{{Name: "s1", Self: true, Voter: true}}
		})}, "b has more", ""},
		"begun elsewhere": {
			[]Survivor{at("a", 9, 9, func(s *Survivor) { s.Quarantined = "it differs" }),
				at("b", 1, 5, func(s *Survivor) { s.Recovering = "new" })}, "known to be wrong", "b"},
		"of another cluster": {[]Survivor{at("a", 1, 5, nil), at("b", 1, 5, func(s *Survivor) { s.ClusterID = "d" })},
			"of one cluster", ""},
		"begun": {
			[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Recovering = "new" }), at("b", 9, 9, nil)}, "", "a"},
	} {
		err := Choose(c.all)
		var unfit *UnfitError
		if (err == nil) != (c.want == "") ||
			err != nil && (!errors.As(err, &unfit) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		best, err := best(c.all)
		if (best == nil) != (c.best == "") || (err == nil) != (best != nil) || best != nil && best.DataDir != c.best {
			t.Errorf("%s: %+v is the best, %v, want %q", name, best, err, c.best)
		}
	}
}

// When no directory is fit, the reason of each is reported: the operator may accept one of them.
func TestWhyNoneIsTheBest(t *testing.T) {
	at := func(dir string, s Survivor) Survivor {
		s.Name, s.DataDir = dir, dir
		return s
	}
	_, err := best([]Survivor{
		at("a", Survivor{Report: &raftstore.Report{ClusterID: "c", Quarantined: "it differs"}}),
		at("b",
			Survivor{
				Report: &raftstore.Report{ClusterID: "c",
					Removed: &raftstore.Removal{At: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}}}),
		at("c", Survivor{Report: &raftstore.Report{ClusterID: "c"}}),
	})
	var unfit *UnfitError
	if !errors.As(err, &unfit) {
		t.Fatal(err)
	}
	for _, reason := range []string{"a is known to be wrong: it differs",
		"b was taken out of the cluster at 2026-11-20 12:00", "c is not of a member"} {
		if !strings.Contains(err.Error(), reason) {
			t.Errorf("%q is not told: %v", reason, err)
		}
	}
}
