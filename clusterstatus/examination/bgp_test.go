package examination

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/clusterstatus"
)

// TestMissingSessions: the doctor lists the missing sessions that the status does not name with
// their reason.
func TestMissingSessions(t *testing.T) {
	old := noon.Add(-time.Minute)
	b := clusterstatus.BGPStatusOf([]clusterstatus.BGPSession{
		{Node: "n1", Peer: "r", Address: "192.0.2.1", Since: old, Problem: "no answer"},
		{Node: "n2", Peer: "r", Address: "192.0.2.1", Since: old},
		{Node: "n3", Peer: "r", Address: "192.0.2.1", Since: noon.Add(-time.Second), Problem: "it has just begun"},
		{Node: "n4", Peer: "r", Address: "192.0.2.1", Since: old, Established: true, Routes: 3},
	})
	e := Examination{Status: &clusterstatus.ClusterStatus{Time: noon, Edge: &clusterstatus.EdgeStatus{BGP: b}}}
	e.edge()
	const text = "node n2 has no BGP session with r (192.0.2.1) since "
	if len(e.Findings) != 1 || !strings.HasPrefix(e.Findings[0].Text, text) ||
		!strings.HasSuffix(e.Findings[0].Text, ": it is being made") || e.Findings[0].Mend == "" {
		t.Errorf("the findings are %+v", e.Findings)
	}
	if want := []string{"BGP: 1 of 4 sessions of 4 nodes established"}; !slices.Equal(e.Notes, want) {
		t.Errorf("the notes are %q", e.Notes)
	}
}
