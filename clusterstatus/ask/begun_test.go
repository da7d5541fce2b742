package ask

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

func TestBegun(t *testing.T) {
	write := func(path, content string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	recovery := write("recover.json", `{"format":1,"clusterID":"new","was":"old"}`)
	for name, c := range map[string]struct {
		role, phase string
		plan        func(t *testing.T, dir string)
		text, mend  string // empty for nothing
	}{
		"a member": {pki.RoleServer, enroll.PhaseMember, nil, "", ""},
		"a member, recovered": {pki.RoleServer, enroll.PhaseMember, recovery,
			"the recovery of cluster old as cluster new was begun and is not finished", "barque server --data-dir "},
		"asking": {pki.RoleServer, enroll.PhaseAsking, nil, "n1 was about to join a cluster",
			"with the arguments"},
		"joining": {pki.RoleServer, enroll.PhaseJoining, nil, "n1 was about to join cluster c,",
			"with the arguments"},
		"wiping": {pki.RoleServer, enroll.PhaseWiping, nil, "n1 was about to join cluster c again",
			"with the arguments"},
		"granted to join again": {pki.RoleServer, enroll.PhaseMember, write("pki/rejoin.json", "{}"),
			"n1 was about to join again", "with the arguments"},
		"an agent, granted again": {pki.RoleAgent, enroll.PhaseMember, write("pki/rejoin.json", "{}"),
			"n1 was about to join again", "barque agent --data-dir "},
		"the record is lost": {"", "", write("pki/rejoin.json", "{}"), "a node was about to join again",
			"with the arguments"},
		"nothing at all":   {"", "", nil, "", ""},
		"a damaged record": {"", "", write("node.json", "{"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(credentials.Dir(dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if c.role != "" {
				r := &enroll.Record{Dir: dir, Name: "n1", Role: c.role, Phase: c.phase, Cluster: join.Cluster{ID: "c"}}
				if err := r.Save(); err != nil {
					t.Fatal(err)
				}
			}
			if c.plan != nil {
				c.plan(t, dir)
			}
			got := Begun(dir)
			if (got == nil) != (c.text == "") {
				t.Fatalf("%v, want %q", got, c.text)
			}
			if got != nil &&
				(!strings.Contains(got.Text, c.text) || !strings.Contains(got.Mend, c.mend) ||
					!strings.Contains(got.Mend, dir)) {
				t.Errorf("%v, want %q and %q", got, c.text, c.mend)
			}
			running, err := enroll.Lock(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer running.Close()
			if got := Begun(dir); got != nil {
				t.Errorf("while a process is about it: %v", got)
			}
		})
	}
	if got := Begun(filepath.Join(t.TempDir(), "none")); got != nil {
		t.Errorf("of no directory: %v", got)
	}
}
