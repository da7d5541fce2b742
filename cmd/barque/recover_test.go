package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/raftstore"
)

// TestInspectRecommendsOneThing: what is told of each directory and what is recommended in the end
// are of one mind.
func TestInspectRecommendsOneThing(t *testing.T) {
	succession := &raftstore.Succession{Cluster: "c", Successor: "new", By: "s9.x"}
	at := func(name string, index uint64, change func(*backups.Survivor)) backups.Survivor {
		members := []raftstore.Member{{Name: name, Voter: true, Self: true}, {Name: "other", Voter: true}}
		s := backups.Survivor{Name: name, DataDir: "/" + name, Report: &raftstore.Report{ClusterID: "c", LastTerm: 1, LastIndex: index, Members: members}}
		if change != nil {
			change(&s)
		}
		return s
	}
	marked := func(s *backups.Survivor) { s.Superseded = succession }
	begun := func(s *backups.Survivor) { s.Recovering = "newer" }
	wrong := func(s *backups.Survivor) { s.Quarantined = "it differs" }
	for name, c := range map[string]struct {
		all  []backups.Survivor
		last string   // line; empty when there is none of its own
		not  []string // nowhere
	}{
		"the newest":            {[]backups.Survivor{at("s1", 5, nil), at("s2", 6, nil)}, "s2 has the most: recover that one", nil},
		"one":                   {[]backups.Survivor{at("s1", 5, nil)}, "", []string{"most", "none"}},
		"one, marked":           {[]backups.Survivor{at("s1", 5, marked)}, "recover it only if that one is given up for good", []string{"most", "none"}},
		"the newest is marked":  {[]backups.Survivor{at("s1", 5, nil), at("s2", 6, marked)}, "recover none of them while cluster new goes on; if that one is given up for good, recover s2, which has the most", []string{"most: recover"}},
		"another one is marked": {[]backups.Survivor{at("s1", 5, marked), at("s2", 6, nil)}, "recover none of them while cluster new goes on; if that one is given up for good, recover s2, which has the most", []string{"most: recover"}},
		"one was begun":         {[]backups.Survivor{at("s1", 5, begun), at("s2", 6, nil)}, "s1 is the one to go on with: its recovery was begun", []string{"most"}},
		"none":                  {[]backups.Survivor{at("s1", 5, wrong), at("s2", 6, wrong)}, "none of them is to be recovered: the state of /s1 is known to be wrong: it differs; the state of /s2 is known to be wrong: it differs", []string{"most"}},
		"marked, and wrong":     {[]backups.Survivor{at("s1", 5, func(s *backups.Survivor) { wrong(s); marked(s) })}, "none of them is to be recovered: the state of /s1 is known to be wrong: it differs", nil},
	} {
		var out bytes.Buffer
		if err := writeSurvivors(&out, c.all); err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSpace(out.String())
		if last := text[strings.LastIndex(text, "\n")+1:]; c.last != "" && !strings.HasSuffix(last, c.last) || c.last == "" && strings.Count(text, "\n") > len(c.all) {
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
