package clusterstatus

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/network/faults"
)

// TestEdgeWarnings: the status warns of what the cluster owes its users, and of nothing that a user
// has written.
func TestEdgeWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		edge     *EdgeStatus
		conflict *Conflict
		want     []string
	}{
		"nothing":     {&EdgeStatus{Pools: []PoolStatus{{Name: "lan", Used: 2, Free: 1}}}, nil, nil},
		"a full pool": {&EdgeStatus{Pools: []PoolStatus{{Name: "lan", Used: 3}}}, nil, nil},
		"not ready": {&EdgeStatus{Pools: []PoolStatus{{Name: "lan", Problem: "it overlaps b"}}}, nil,
			[]string{"the AddressPool lan gives no addresses: it overlaps b"}},
		"exhausted": {
			&EdgeStatus{
				Waiting: []WaitingService{{Service: "ns/a", Reason: "PoolExhausted"},
					{Service: "ns/b", Reason: "PoolExhausted"}}}, nil,
			[]string{"no AddressPool has a free address for 2 Services: ns/a, ns/b"}},
		"exhausted for a Gateway": {
			&EdgeStatus{Waiting: []WaitingService{{Service: "ns/a", Reason: "PoolExhausted"},
				{Service: "ns/g-barque", Reason: "PoolExhausted", Gateway: "ns/g"}}}, nil,
			[]string{"no AddressPool has a free address for 1 Service: ns/a",
				"no AddressPool has a free address for 1 Gateway: ns/g"}},
		"a user's own": {
			&EdgeStatus{Waiting: []WaitingService{{Service: "ns/a", Reason: "PortInUse"}},
				Routes: []RouteFault{{Object: "Ingress ns/a"}}}, nil, nil},
		"a conflict": {nil,
			&Conflict{Address: "192.0.2.9", MAC: "02:00:00:00:00:09", Link: "eth0", Last: Noon.Add(-time.Minute)},
			[]string{
				"another machine, 02:00:00:00:00:09, answers for 192.0.2.9 on link eth0 of server s2, which holds it: clients may reach either"}},
		"a former conflict": {nil, &Conflict{Address: "192.0.2.9", Last: Noon.Add(-6 * time.Minute)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.reports["s1"].Edge = c.edge
			w.reports["s3"].Edge = &EdgeStatus{
				Pools: []PoolStatus{{Name: "stale", Problem: "of a server that does not lead"}}}
			if c.conflict != nil {
				w.reports["s2"].Conflicts = []Conflict{*c.conflict}
			}
			var got []string
			for _, of := range Assemble(Noon, w.observe(t)).Warnings {
				got = append(got, of.Text)
				if of.Mend == "" {
					t.Errorf("no remedy: %s", of.Text)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestConflictsOfNodes: the doctor has the conflicts of agents from their events, and those of
// servers once.
func TestConflictsOfNodes(t *testing.T) {
	e := Examination{Time: Noon, Network: []faults.Fault{
		{Node: "a1", Reason: faults.AddressConflict, Text: "node a1: a conflict", Mend: faults.MendConflict},
		{Node: "s1", Reason: faults.AddressConflict, Text: "node s1: a conflict", Mend: faults.MendConflict},
		{Node: "s2", Reason: faults.AddressConflict, Text: "node s2: a conflict", Mend: faults.MendConflict},
		{Node: "a2", Reason: faults.AddressConflict, Text: "node a2: a former conflict"},
	}, Status: &ClusterStatus{Time: Noon, Members: []MemberStatus{
		{Name: "s1", Conflicts: []Conflict{{Last: Noon}}},
		{Name: "s2", Conflicts: []Conflict{{Last: Noon.Add(-conflictOver)}}},
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
	e := Examination{Status: &ClusterStatus{Edge: &EdgeStatus{MoreRoutes: 1, Waiting: []WaitingService{
		{Service: "ns/full", Reason: "PoolExhausted"},
		{Service: "ns/web", Reason: "PortInUse", Message: "the port 80/TCP is in use", Since: Noon},
	}}}}
	for i := range mostEdge + 2 {
		e.Status.Edge.Routes = append(e.Status.Edge.Routes,
			RouteFault{Object: fmt.Sprintf("Ingress ns/%d", i), Text: "there is no Service", Mend: "barque kubectl"})
	}
	e.edge()
	if len(e.Findings) != 1+mostEdge {
		t.Fatalf("%d findings", len(e.Findings))
	}
	want := Warning{Severity: Attention,
		Text: "Service ns/web waits for an address since " + Noon.UTC().Format(time.RFC3339) +
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
