package clusterstatus

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestBGPStatus: those that are missing come first, within a bound, and all are counted.
func TestBGPStatus(t *testing.T) {
	if BGPStatusOf(nil) != nil {
		t.Error("a cluster without sessions has a status of them")
	}
	var all []BGPSession
	for i := range mostSessions + 10 {
		all = append(all, BGPSession{Node: fmt.Sprintf("n%03d", i/2), Peer: fmt.Sprint("r", i%2), Established: i != 7})
	}
	got := BGPStatusOf(all)
	if got.Sessions != mostSessions+10 || got.Established != mostSessions+9 || got.Nodes != mostSessions/2+5 ||
		len(got.List) != mostSessions || got.List[0] != all[7] || got.List[1] != all[0] {
		t.Errorf("%d, %d of %d, and first %+v", got.Established, got.Sessions, got.Nodes, got.List[:2])
	}
}

// TestMissingSessions: the status warns of sessions that have been missing for a while.
func TestMissingSessions(t *testing.T) {
	old := Noon.Add(-time.Minute)
	b := BGPStatusOf([]BGPSession{
		{Node: "n1", Peer: "r", Address: "192.0.2.1", Since: old, Problem: "no answer"},
		{Node: "n2", Peer: "r", Address: "192.0.2.1", Since: old},
		{Node: "n3", Peer: "r", Address: "192.0.2.1", Since: Noon.Add(-time.Second), Problem: "it has just begun"},
		{Node: "n4", Peer: "r", Address: "192.0.2.1", Since: old, Established: true, Routes: 3},
	})
	w := newWorld()
	w.reports["s1"].Edge = &EdgeStatus{BGP: b}
	s := Assemble(Noon, w.observe(t))
	var warned []string
	for _, of := range s.Warnings {
		warned = append(warned, of.Text)
	}
	want := []string{"2 BGP sessions are missing: n1 with r, n2 with r; 192.0.2.1: no answer"}
	if !slices.Equal(warned, want) {
		t.Errorf("it warns %q, want %q", warned, want)
	}
}
