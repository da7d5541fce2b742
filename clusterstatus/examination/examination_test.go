package examination

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/network/faults"
)

// TestDoctorReadsPaths: large packets that do not arrive are a fault, and machines that answer no
// echo are none.
func TestDoctorReadsPaths(t *testing.T) {
	for text, want := range map[string]struct{ findings, notes string }{
		"": {},
		`[{"node": "s2", "address": "192.0.2.2", "size": 1500, "answer": "whole"}]`: {},
		`[{"node": "s2", "address": "192.0.2.2", "size": 1500, "answer": "small only"}]`: {
			findings: "do not reach s2 (192.0.2.2, 1500 bytes)"},
		`[{"node": "s2", "address": "2001:db8::2", "size": 1500, "answer": "silent"}]`: {notes: "s2 (2001:db8::2)"},
	} {
		e := &Examination{Procedures: clusterstatus.Services()}
		e.paths(clusterstatus.Diagnosis{Server: "s1", Files: map[string]string{"paths.json": text}})
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
		e := &Examination{Procedures: clusterstatus.Services()}
		e.tunnels(clusterstatus.Diagnosis{Server: "s1", Time: at, Files: map[string]string{"wireguard.json": text}})
		var findings string
		for _, f := range e.Findings {
			findings += f.Text
		}
		if (findings != "") != (want != "") || !strings.Contains(findings, want) || strings.Contains(findings, "a2") {
			t.Errorf("%s: findings %q", text, findings)
		}
	}
}

// TestDoctorReadsConnections: a table of connections that is nearly full is a fault of its server,
// also where no event tells of it.
func TestDoctorReadsConnections(t *testing.T) {
	server := func(count int) clusterstatus.Diagnosis {
		text := fmt.Sprintf("== %s\n%d\n\n== %s\n1000\n\n", faults.CountFile, count, faults.MaxFile)
		return clusterstatus.Diagnosis{Server: "s1", Files: map[string]string{"machine.txt": text}}
	}
	told := func(node string) []faults.Fault {
		return []faults.Fault{
			{Node: node, Reason: faults.ConnectionsFull, Text: "told by " + node, Mend: faults.MendConnections},
			{Node: node, Reason: faults.RulesChanged, Text: "rules of " + node},
		}
	}
	const full = "server s1: 900 of 1000 connections are tracked (nf_conntrack_max): new connections are dropped when the table is full"
	for _, c := range []struct {
		server   clusterstatus.Diagnosis
		events   []faults.Fault
		findings string
		notes    string
	}{
		{server(899), nil, "", ""},
		{server(900), nil, full, ""},
		{server(900), told("s1"), full, "rules of s1"},
		{server(1), told("s1"), "", "rules of s1"},
		{server(1), told("a1"), "told by a1", "rules of a1"},
		{clusterstatus.Diagnosis{Server: "s1"}, told("s1"), "told by s1", "rules of s1"}, // of before
	} {
		e := &Examination{Procedures: clusterstatus.Services(), Network: c.events,
			Servers: []clusterstatus.Diagnosis{c.server}}
		e.Diagnose()
		var findings []string
		for _, f := range e.Findings {
			findings = append(findings, f.Text)
		}
		if got := strings.Join(findings, "; "); got != c.findings || strings.Join(e.Notes, "; ") != c.notes {
			t.Errorf("findings %q, want %q; notes %q, want %q", got, c.findings, e.Notes, c.notes)
		}
	}
}
