package clusterstatus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/barque/barque/membership/gossip"
)

// AgentProfile is an agent with another profile than the server that reports it.
type AgentProfile struct {
	Name    string `json:"name"`
	Profile string `json:"profile"`
	Server  string `json:"server"` // the profile of the server
}

// OtherProfiles returns the agents with another profile than the server's, by name.
func OtherProfiles(server string, agents map[string]string) (others []AgentProfile) {
	for name, profile := range agents {
		if profile != server {
			others = append(others, AgentProfile{Name: name, Profile: profile, Server: server})
		}
	}
	slices.SortFunc(others, func(a, b AgentProfile) int { return cmp.Compare(a.Name, b.Name) })
	return others
}

// agentProfiles adds those in the leader's view that are alive: a dead agent cannot be started with
// another profile. Servers that differ have their own warning.
func (a *assembly) agentProfiles() {
	report := a.objects[a.status.Leader]
	if report == nil {
		return
	}
	for _, p := range report.Profiles {
		if m := a.members[p.Name]; m != nil && m.Gossip == gossip.Alive {
			a.status.Profiles = append(a.status.Profiles, p)
		}
	}
}

// profiles warns of agents with another profile than the servers. They are many while an operator
// changes the profile of a cluster, so that there is one warning for all with the same one.
func (w *warner) profiles() {
	names := map[AgentProfile][]string{}
	for _, p := range w.status.Profiles {
		of := AgentProfile{Profile: p.Profile, Server: p.Server}
		names[of] = append(names[of], p.Name)
	}
	for _, of := range slices.SortedFunc(maps.Keys(names),
		func(a, b AgentProfile) int { return cmp.Compare(a.Profile, b.Profile) }) {
		agents := names[of]
		node := ""
		if len(agents) == 1 {
			node = agents[0]
		}
		w.add(Attention, node, node, fmt.Sprintf("barque agent --profile %s, once on each of them", of.Server),
			"agents have another profile than the servers, %s in place of %s: %s. Other defaults hold for their pods",
			of.Profile, of.Server, firstOf(agents))
	}
}
