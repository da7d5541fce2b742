package backups

import (
	"bytes"
	"strings"
	"testing"

	"github.com/barque/barque/raftstore"
)

// TestRecoveryWarnsOfTheOneBefore: also when only another directory knows of it.
func TestRecoveryWarnsOfTheOneBefore(t *testing.T) {
	plain := Survivor{Name: "s1", Report: &raftstore.Report{ClusterID: "c"}}
	marked := Survivor{Name: "s2",
		Report: &raftstore.Report{ClusterID: "c", Superseded: &raftstore.Succession{Cluster: "c", Successor: "new"}}}
	for name, c := range map[string]struct {
		all  []Survivor
		want string
	}{
		"nobody":      {[]Survivor{plain}, ""},
		"it":          {[]Survivor{marked, plain}, "Its agents follow this one."},
		"another one": {[]Survivor{plain, marked}, "Its agents must be started with --rejoin."},
	} {
		got := OneBefore(c.all)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) ||
			got != "" && !strings.Contains(got, "Cluster new goes on") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestInspectRecommendsOneThing: the line about each directory and the recommendation at the end
// agree.
func TestInspectRecommendsOneThing(t *testing.T) {
	succession := &raftstore.Succession{Cluster: "c", Successor: "new", By: "s9.x"}
	at := func(name string, index uint64, change func(*Survivor)) Survivor {
		members := []raftstore.Member{{Name: name, Voter: true, Self: true}, {Name: "other", Voter: true}}
		s := Survivor{Name: name, DataDir: "/" + name,
			Report: &raftstore.Report{ClusterID: "c", LastTerm: 1, LastIndex: index, Members: members}}
		if change != nil {
			change(&s)
		}
		return s
	}
	marked := func(s *Survivor) { s.Superseded = succession }
	begun := func(s *Survivor) { s.Recovering = "newer" }
	wrong := func(s *Survivor) { s.Quarantined = "it differs" }
	for name, c := range map[string]struct {
		all  []Survivor
		last string   // line; empty when there is none of its own
		not  []string // nowhere
	}{
		"the newest": {[]Survivor{at("s1", 5, nil), at("s2", 6, nil)}, "s2 has the most: recover that one",
			nil},
		"one": {[]Survivor{at("s1", 5, nil)}, "", []string{"most", "none"}},
		"one, marked": {[]Survivor{at("s1", 5, marked)}, "recover it only if that one is given up for good",
			[]string{"most", "none"}},
		"the newest is marked": {[]Survivor{at("s1", 5, nil), at("s2", 6, marked)},
			"recover none of them while cluster new goes on; if that one is given up for good, recover s2, which has the most", []string{"most: recover"}},
		"another one is marked": {[]Survivor{at("s1", 5, marked), at("s2", 6, nil)},
			"recover none of them while cluster new goes on; if that one is given up for good, recover s2, which has the most", []string{"most: recover"}},
		"one was begun": {[]Survivor{at("s1", 5, begun), at("s2", 6, nil)},
			"s1 is the one to go on with: its recovery was begun", []string{"most"}},
		"none": {[]Survivor{at("s1", 5, wrong), at("s2", 6, wrong)},
			"none of them is to be recovered: the state of /s1 is known to be wrong: it differs; the state of /s2 is known to be wrong: it differs", []string{"most"}},
		"marked, and wrong": {[]Survivor{at("s1", 5, func(s *Survivor) { wrong(s); marked(s) })},
			"none of them is to be recovered: the state of /s1 is known to be wrong: it differs", nil},
	} {
		var out bytes.Buffer
		if err := WriteSurvivors(&out, c.all); err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSpace(out.String())
		if last := text[strings.LastIndex(text, "\n")+1:]; c.last != "" && !strings.HasSuffix(last, c.last) ||
			c.last == "" && strings.Count(text, "\n") > len(c.all) {
			t.Errorf("%s: it ends with %q, want %q", name, last, c.last)
		}
		for _, not := range c.not {
			if strings.Contains(text, not) {
				t.Errorf("%s: it says %q:\n%s", name, not, text)
			}
		}
		for _, s := range c.all {
			if s.Superseded != nil && !strings.Contains(text, s.Name+": "+succession.String()) {
				t.Errorf("%s: the mark of %s is not told:\n%s", name, s.Name, text)
			}
		}
	}
}

// TestConsequencesNameTheLost: the consequences name the lost servers in order, and a cluster that
// already goes on.
func TestConsequencesNameTheLost(t *testing.T) {
	members := []raftstore.Member{{Name: "s3", Voter: true}, {Name: "s1", Voter: true, Self: true},
		{Name: "s2", Voter: true}}
	s := Survivor{Name: "s1", DataDir: "/d", Report: &raftstore.Report{ClusterID: "c", Members: members}}
	text := Consequences([]Survivor{s})
	if !strings.HasPrefix(text, "s1 becomes the only server of a new cluster") ||
		!strings.Contains(text, "only the others had (s2, s3) are lost") || strings.Contains(text, "goes on in place") {
		t.Errorf("%s", text)
	}
	s.Superseded = &raftstore.Succession{Cluster: "c", Successor: "new"}
	if text := Consequences([]Survivor{s}); !strings.Contains(text,
		"Cluster new goes on in place of its cluster already") {
		t.Errorf("%s", text)
	}
	var out bytes.Buffer
	done := Recovered{Server: "s1", DataDir: "/d", Cluster: "new", Was: "c"}
	if err := done.Write(&out); err != nil || !strings.Contains(out.String(), "barque server --data-dir /d\n") ||
		!strings.Contains(out.String(), "https://ADDRESS-OF-s1:6443") {
		t.Errorf("%v: %s", err, &out)
	}
}
