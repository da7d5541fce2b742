package credentials

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// Whoever was removed and goes on to gossip holds no exchange up; whoever is away does, and one
// that has joined just now.
func TestWhomAnExchangeWaitsFor(t *testing.T) {
	now := time.Now()
	member := func(name, role string, state gossip.State, since time.Duration) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: state, Since: now.Add(-since), Facts: gossip.Facts{Trust: 1}}
	}
	nodes := map[string]time.Time{"a7": now.Add(-time.Minute)} // made anew after another machine of the name went
	for _, name := range []string{"s1", "s3", "s5", "a1", "a2", "a6"} {
		nodes[name] = now.Add(-2 * time.Hour)
	}
	got := ExchangeMembers(now, []string{"s1", "s2", "s4"}, nodes, []gossip.Member{
		member("s1", pki.RoleServer, gossip.Alive, time.Hour),
		member("s2", pki.RoleServer, gossip.Dead, time.Hour),
		member("s3", pki.RoleServer, gossip.Alive, time.Hour),   // removed; its Node is there yet
		member("s5", pki.RoleServer, gossip.Dead, time.Hour),    // removed and stopped; its Node is there yet
		member("s6", pki.RoleServer, gossip.Alive, time.Minute), // removed, without a Node
		member("a1", pki.RoleAgent, gossip.Alive, time.Hour),
		member("a2", pki.RoleAgent, gossip.Dead, time.Hour),
		member("a3", pki.RoleAgent, gossip.Alive, time.Hour),   // removed
		member("a4", pki.RoleAgent, gossip.Dead, time.Second),  // removed and stopped
		member("a5", pki.RoleAgent, gossip.Alive, time.Second), // has no Node yet
		member("a7", pki.RoleServer, gossip.Dead, time.Hour),   // was a server of the name, which is an agent's now
	})
	slices.SortFunc(got, func(a, b exchange.Member) int { return strings.Compare(a.Name, b.Name) })
	want := []exchange.Member{
		{Name: "a1", Alive: true, Generation: 1}, {Name: "a2", Generation: 1}, {Name: "a5", Alive: true, Generation: 1}, {Name: "a6"}, {Name: "a7"},
		{Name: "s1", Server: true, Alive: true, Generation: 1}, {Name: "s2", Server: true, Generation: 1}, {Name: "s4", Server: true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
