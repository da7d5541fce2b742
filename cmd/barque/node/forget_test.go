package node

import (
	"slices"
	"testing"
	"time"

	"github.com/barque/barque/membership/gossip"
)

func TestGoneAgents(t *testing.T) {
	now := time.Now()
	member := func(name, role string, state gossip.State, since time.Duration) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: state, Since: now.Add(-since)}
	}
	got := goneAgents([]gossip.Member{
		member("alive", roleAgent, gossip.Alive, time.Hour),
		member("dead", roleAgent, gossip.Dead, time.Minute),
		member("left", roleAgent, gossip.Left, time.Minute),
		member("just dead", roleAgent, gossip.Dead, time.Second),
		member("server", roleServer, gossip.Dead, time.Hour), // the store says when it was removed
	}, now, 10*time.Second)
	if want := []string{"dead", "left"}; !slices.Equal(got, want) {
		t.Errorf("gone are %v, want %v", got, want)
	}
}
