package clusterstatus

import (
	"slices"
	"testing"

	"github.com/barque/barque/membership/gossip"
)

// TestProfilesOfDeadAgents: of agents that show no life, have left, or are unknown, none can be
// started with another profile.
func TestProfilesOfDeadAgents(t *testing.T) {
	w := newWorld()
	w.agents(gossip.Alive, "a1")
	w.agents(gossip.Dead, "a2")
	w.agents(gossip.Left, "a3")
	w.reports["s1"].Profiles = OtherProfiles("cis",
		map[string]string{"a1": "none", "a2": "none", "a3": "none", "a4": "none"})
	if got := Assemble(Noon, w.observe(t)).Profiles; !slices.Equal(got, []AgentProfile{{"a1", "none", "cis"}}) {
		t.Errorf("%+v", got)
	}
}
