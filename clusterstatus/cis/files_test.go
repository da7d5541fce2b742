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
		KindKubelet: {"4.1.9", "4.1.10"}, KindCNI: {"1.1.9", "1.1.10"}, KindUnit: {"1.1.1", "4.1.2"},
		KindKey: {"1.1.21", "1.2.22", "4.1.5"}, KindKubeconfig: {"1.1.13", "1.1.15", "4.1.3"},
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

// TestFilesAreMendedByACommand: a file's remedy can be pasted into a shell, on each machine.
func TestFilesAreMendedByACommand(t *testing.T) {
	machine := func(name string, files ...File) *Machine { return &Machine{Name: name, Files: files} }
	open := File{Path: "/d/node.json", Kind: KindRecord, Mode: 0o644}
	spaced := File{Path: "/my data/pki/node.key", Kind: KindKey, Mode: 0o640}
	for name, c := range map[string]struct {
		server, agent *Machine
		row, want     string
	}{
		"one file": {nil, machine("a1", open), "4.1.5", "chmod 600 /d/node.json"},
		"two files": {nil, machine("a1", open, spaced, File{Path: "/d/other.key", Kind: KindKey, Mode: 0o600}),
			"4.1.5", "chmod 600 /d/node.json '/my data/pki/node.key'"},
		"owner": {nil, machine("a1", File{Path: "/d/node.json", Kind: KindRecord, Mode: 0o600, UID: 7}),
			"4.1.6", "chown root:root /d/node.json"},
		"another mode": {nil, machine("a1", File{Path: "/d/pki/ca.crt", Kind: KindCA, Mode: 0o666}), "4.1.7",
			"chmod 644 /d/pki/ca.crt"},
		"a kubeconfig": {nil, machine("a1", File{Path: "/d/ann.kubeconfig", Kind: KindKubeconfig, Mode: 0o600}),
			"4.1.3", "rm -i /d/ann.kubeconfig"},
		"service accounts": {machine("s1", File{Path: "/d/pki/service-account.key", Kind: KindKey, Mode: 0o644}), nil,
			"1.2.22", "chmod 600 /d/pki/service-account.key"},
		"one of two": {machine("s1", open), machine("a1"), "4.1.5", "chmod 600 /d/node.json # on s1"},
		"both machines": {machine("s1", open), machine("a1", spaced), "4.1.5",
			"chmod 600 /d/node.json # on s1\nchmod 600 '/my data/pki/node.key' # on a1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Evidence{Machine: c.agent}
			if c.server != nil {
				e.Servers = []Server{{Name: c.server.Name, Report: &ServerReport{Machine: *c.server}}}
			}
			if r := judged(e, c.row); r.Status != Fail || r.Mend != c.want {
				t.Errorf("%+v, want %q", r, c.want)
			}
		})
	}
	report := Judge(
		&Evidence{Servers: []Server{{Name: "s1", Report: &ServerReport{Machine: *machine("s1", open)}}},
			Machine: machine("a1", spaced)}, everyFlag)
	var out strings.Builder
	if err := report.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"→ chmod 600 /d/node.json # on s1\n",
		"→ chmod 600 '/my data/pki/node.key' # on a1\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in %s", line, out.String())
		}
	}
}
