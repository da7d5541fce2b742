package main

import (
	"strings"
	"testing"

	"github.com/barque/barque/cmd/barque/node"
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
		e := &examination{procedures: node.Services()}
		e.paths(node.Diagnosis{Server: "s1", Files: map[string]string{"paths.json": text}})
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
