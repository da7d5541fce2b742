package clusterstatus

import (
	"strings"
	"testing"
	"time"
)

// TestDoctorReadsPaths: large packets that do not arrive are a fault, and machines that answer no
// echo are none.
func TestDoctorReadsPaths(t *testing.T) {
	for text, want := range map[string]struct{ findings, notes string }{
		"": {},
		`[{"node": "s2", "address": "192.0.2.2", "size": 1500, "answer": "whole"}]`:      {},
		`[{"node": "s2", "address": "192.0.2.2", "size": 1500, "answer": "small only"}]`: {findings: "do not reach s2 (192.0.2.2, 1500 bytes)"},
		`[{"node": "s2", "address": "2001:db8::2", "size": 1500, "answer": "silent"}]`:   {notes: "s2 (2001:db8::2)"},
	} {
		e := &Examination{Procedures: Services()}
		e.paths(Diagnosis{Server: "s1", Files: map[string]string{"paths.json": text}})
		var findings string
		for _, f := range e.Findings {
			findings += f.Text
		}
		notes := strings.Join(e.Notes, "\n")
		if (findings != "") != (want.findings != "") || !strings.Contains(findings, want.findings) ||
			(notes != "") != (want.notes != "") || !strings.Contains(notes, want.notes) {
			t.Errorf("%s: findings %q, notes %q", text, findings, notes)
		}
	}
}

// TestDoctorReadsTunnels: a node with which no key of WireGuard is valid is a fault.
func TestDoctorReadsTunnels(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]string{
		"":     "",
		"null": "",
		`[{"node": "a1", "endpoint": "192.0.2.2:51820", "handshake": "2026-01-02T03:03:00Z"}]`:                                  "",
		`[{"node": "a1", "endpoint": "192.0.2.2:51820", "handshake": "2026-01-02T02:58:00Z"}]`:                                  "a1 (192.0.2.2:51820, last at 2026-01-02T02:58:00Z)",
		`[{"node": "a1", "endpoint": "192.0.2.2:51820"}, {"node": "a2", "endpoint": "x", "handshake": "2026-01-02T03:04:05Z"}]`: "a1 (192.0.2.2:51820, never)",
	} {
		e := &Examination{Procedures: Services()}
		e.tunnels(Diagnosis{Server: "s1", Time: at, Files: map[string]string{"wireguard.json": text}})
		var findings string
		for _, f := range e.Findings {
			findings += f.Text
		}
		if (findings != "") != (want != "") || !strings.Contains(findings, want) || strings.Contains(findings, "a2") {
			t.Errorf("%s: findings %q", text, findings)
		}
	}
}
