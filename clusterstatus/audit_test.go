package clusterstatus

import (
	"strings"
	"testing"
	"time"
)

// TestAuditLosses: fresh losses are a warning, with the remedy for their sink.
func TestAuditLosses(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	w := &warner{status: &ClusterStatus{Time: now}}
	w.auditLosses(&MemberStatus{Name: "s1", AuditLosses: []AuditLoss{
		{Sink: "log", Target: "/d/audit.log", Events: 7, Last: now.Add(-time.Minute),
			Reason: "no space left on device"},
		{Sink: "webhook", Target: "/hook", Events: 9, Last: now.Add(-time.Minute), Reason: "the queue is full"},
		{Sink: "limit", Target: "callers without an identity", Events: 1, Last: now, Reason: "there are too many"},
		{Sink: "nodes", Target: "refused requests of nodes", Events: 2, Last: now,
			Reason: "system:node:n1 is refused too often"},
		{Sink: "webhook", Target: "/old", Events: 9, Last: now.Add(-2 * time.Hour), Reason: "it was away"},
	}})
	want := []struct{ text, mend string }{
		{"server s1 has lost 7 audit events for /d/audit.log since it was started, the last one at 2026-11-29T11:59:00Z: no space left on device", "df -h /d/audit.log"},
		{"9 audit events for /hook", "/hook answers"},
		{"1 audit events", "--user system:anonymous"},
		{"2 audit events for refused requests of nodes", "remove the node"},
	}
	if len(w.found) != len(want) {
		t.Fatalf("%v", w.found)
	}
	for i, f := range w.found {
		if f.Severity != Attention || f.Node != "s1" || !strings.Contains(f.Text, want[i].text) ||
			!strings.Contains(f.Mend, want[i].mend) {
			t.Errorf("%+v, want %+v", f, want[i])
		}
	}
}
