package liveness

import (
	"net/netip"
	"testing"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// TestLost: a server is lost when the pool misses it, and no living one has its address.
func TestLost(t *testing.T) {
	member := func(name, role string, address string, state gossip.State) gossip.Member {
		return gossip.Member{Name: name, Role: role, Addr: netip.MustParseAddrPort(address + ":7946"), State: state,
			Facts: gossip.Facts{APIPort: 6443}}
	}
	members := []gossip.Member{
		member("alive", pki.RoleServer, "10.0.0.1", gossip.Alive),
		member("dead", pki.RoleServer, "10.0.0.2", gossip.Dead),
		member("left", pki.RoleServer, "10.0.0.3", gossip.Left),
		member("old", pki.RoleServer, "10.0.0.4", gossip.Dead),
		member("new", pki.RoleServer, "10.0.0.4", gossip.Alive),
		member("agent", pki.RoleAgent, "10.0.0.5", gossip.Dead),
	}
	for api, want := range map[string]bool{
		"10.0.0.1:6443": false, "10.0.0.2:6443": true, "10.0.0.2:6444": false, "10.0.0.3:6443": true,
		"10.0.0.4:6443": false, "10.0.0.5:6443": false, "10.0.0.6:6443": false,
	} {
		if got := lost(members, netip.MustParseAddrPort(api)); got != want {
			t.Errorf("the server at %s is lost: %t, want %t", api, got, want)
		}
	}
}
