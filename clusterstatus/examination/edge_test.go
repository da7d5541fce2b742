package examination

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/network/faults"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// TestConflictsOfNodes: the doctor has the conflicts of agents from their events, and those of
// servers once.
func TestConflictsOfNodes(t *testing.T) {
	e := Examination{Time: noon, Network: []faults.Fault{
		{Node: "a1", Reason: faults.AddressConflict, Text: "node a1: a conflict", Mend: faults.MendConflict},
		{Node: "s1", Reason: faults.AddressConflict, Text: "node s1: a conflict", Mend: faults.MendConflict},
		{Node: "s2", Reason: faults.AddressConflict, Text: "node s2: a conflict", Mend: faults.MendConflict},
		{Node: "a2", Reason: faults.AddressConflict, Text: "node a2: a former conflict"},
	}, Status: &clusterstatus.ClusterStatus{Time: noon, Members: []clusterstatus.MemberStatus{
		{Name: "s1", Conflicts: []clusterstatus.Conflict{{Last: noon}}},
		{Name: "s2", Conflicts: []clusterstatus.Conflict{{Last: noon.Add(-time.Hour)}}},
	}}}
	e.network()
	var got []string
	for _, w := range e.Findings {
		got = append(got, w.Text)
		if w.Mend != faults.MendConflict || w.On != "" {
			t.Errorf("%+v", w)
		}
	}
	if !slices.Equal(got, []string{"node a1: a conflict", "node s2: a conflict"}) ||
		!slices.Equal(e.Notes, []string{"node a2: a former conflict"}) {
		t.Errorf("%q, notes %q", got, e.Notes)
	}
}

// TestEdgeFindings: the doctor has what the status leaves to users, within bounds.
func TestEdgeFindings(t *testing.T) {
	e := Examination{Status: &clusterstatus.ClusterStatus{Edge: &clusterstatus.EdgeStatus{MoreRoutes: 1}}}
	e.Status.Edge.Waiting = []clusterstatus.WaitingService{
		{Service: "ns/full", Reason: "PoolExhausted"},
		{Service: "ns/web", Reason: "PortInUse", Message: "the port 80/TCP is in use", Since: noon},
	}
	for i := range mostEdge + 2 {
		e.Status.Edge.Routes = append(e.Status.Edge.Routes,
			clusterstatus.RouteFault{Object: fmt.Sprintf("Ingress ns/%d", i), Text: "there is no Service",
				Mend: "barque kubectl"})
	}
	e.edge()
	if len(e.Findings) != 1+mostEdge {
		t.Fatalf("%d findings", len(e.Findings))
	}
	want := clusterstatus.Warning{Severity: clusterstatus.Attention,
		Text: "Service ns/web waits for an address since " + noon.UTC().Format(time.RFC3339) +
			" (PortInUse): the port 80/TCP is in use",
		Mend: "barque kubectl -n ns describe service web"}
	if e.Findings[0] != want {
		t.Errorf("%+v, want %+v", e.Findings[0], want)
	}
	if got := e.Findings[1]; got.Text != "Ingress ns/0: there is no Service" || got.Mend != "barque kubectl" {
		t.Errorf("%+v", got)
	}
	if len(e.Notes) != 1 || !strings.HasPrefix(e.Notes[0], "3 more faults") {
		t.Errorf("%q", e.Notes)
	}
}
