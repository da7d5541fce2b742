package clusterstatus

import (
	"slices"
	"testing"
	"time"
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
