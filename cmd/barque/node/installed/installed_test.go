package installed

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// TestMembership: a server counts from its admission to its removal; an agent never does.
func TestMembership(t *testing.T) {
	for name, c := range map[string]struct {
		role, phase string
		removed     bool
		member      bool
	}{
		"an agent":                {role: pki.RoleAgent, phase: enroll.PhaseMember},
		"one that has never run":  {role: pki.RoleServer, phase: enroll.PhaseBootstrap},
		"one that asks":           {role: pki.RoleServer, phase: enroll.PhaseAsking},
		"one that is let in":      {role: pki.RoleServer, phase: enroll.PhaseJoining, member: true},
		"a member":                {role: pki.RoleServer, phase: enroll.PhaseMember, member: true},
		"one that joins as a new": {role: pki.RoleServer, phase: enroll.PhaseWiping, member: true},
		"one that was removed":    {role: pki.RoleServer, phase: enroll.PhaseMember, removed: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := &enroll.Record{Dir: dir, Name: "s2", Role: c.role, Phase: c.phase,
				Cluster: join.Cluster{ID: "c1", Servers: []join.Server{{Name: "s3"}, {Name: "s2"}, {Name: "s1"}}}}
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
			if c.removed {
				if err := os.MkdirAll(enroll.StoreDir(dir), 0o700); err != nil {
					t.Fatal(err)
				}
				mark := filepath.Join(enroll.StoreDir(dir), "removed.json")
				if err := os.WriteFile(mark, []byte("{}"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, err := Membership(dir)
			if err != nil || m.Member != c.member || m.Name != "s2" || m.Cluster != "c1" || m.Role != c.role {
				t.Errorf("%+v %v", m, err)
			}
			if c.member && !slices.Equal(m.Servers, []string{"s1", "s3"}) {
				t.Errorf("the others are %q", m.Servers)
			}
		})
	}
	if m, err := Membership(t.TempDir()); err != nil || m.Member || m.Role != "" {
		t.Errorf("nothing: %+v %v", m, err)
	}
}

// TestIsOfNode: with a wrong name of the data directory, a removal would delete something else.
func TestIsOfNode(t *testing.T) {
	empty, other, node := t.TempDir(), t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(other, "letter"), filepath.Join(node, "letter"),
		filepath.Join(node, "node.json")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]bool{empty: true, other: false, node: true, filepath.Join(empty, "none"): true} {
		if err := IsOfNode(dir); (err == nil) != want {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
