package cis

import (
	"strings"
	"testing"
)

// TestMachinesOfAgents: a server does not see an agent's disk, so the rows of all machines do not
// pass until somebody has looked there.
func TestMachinesOfAgents(t *testing.T) {
	for _, row := range Rows() {
		if row.Scope != OfMachine {
			continue
		}
		e := hardened()
		agent := hardened().Nodes[0]
		agent.Name = "a1"
		e.Nodes = append(e.Nodes, agent)
		if r := judged(e, row.ID); r.Status != Person || !strings.Contains(r.Reason, "not looked at: a1") {
			t.Errorf("%s: %+v", row.ID, r)
		}
		e.Machine = &Machine{Name: "a1", Files: hardened().Servers[0].Report.Machine.Files}
		if r, want := judged(e, row.ID), judged(hardened(), row.ID); r.Status != want.Status {
			t.Errorf("%s with the agent's files: %+v, want %s", row.ID, r, want.Status)
		}
		if r := judged(&Evidence{Servers: []Server{}}, row.ID); r.Status != Unknown {
			t.Errorf("%s without a machine: %+v", row.ID, r)
		}
	}
}

// TestUnseenFiles: files that could not be listed give no good result.
func TestUnseenFiles(t *testing.T) {
	for kind, rows := range map[string][]string{
		KindKubelet: {"4.1.9", "4.1.10"}, KindCNI: {"1.1.9", "1.1.10"}, KindUnit: {"1.1.1", "4.1.2"}, KindKey: {"1.1.21", "1.2.22", "4.1.5"}, KindKubeconfig: {"1.1.13", "1.1.15", "4.1.3"},
	} {
		for _, id := range rows {
			e := hardened()
			e.Servers[0].Report.Machine.Unseen = map[string]string{kind: "too many"}
			if r := judged(e, id); r.Status != Unknown || !strings.Contains(r.Reason, "too many") {
				t.Errorf("%s: %+v", id, r)
			}
		}
	}
	e := &Evidence{Machine: &Machine{Name: "a1", Unseen: map[string]string{KindKubelet: "the agent does not run"}}}
	if r := judged(e, "4.1.9"); r.Status != Unknown {
		t.Errorf("%+v", r)
	}
}
