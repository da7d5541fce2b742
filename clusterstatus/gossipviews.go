package clusterstatus

import "github.com/barque/barque/membership/gossip"

// GossipPath answers with GossipViews: the members' views of each other. The parameter agents=true
// includes the agents' views. RBAC controls the access.
const GossipPath = "/barque/v1/gossip"

// GossipViews are the views of the members that were asked.
type GossipViews struct {
	From string `json:"from"` // the server that answers
	// Views begin with that of From.
	Views []gossip.View `json:"views"`
	// Silent are living members that did not answer From, with the reason.
	Silent map[string]string `json:"silent,omitempty"`
	// Disagreements are the members on which the views differ, such as one that A sees and B does
	// not. A change that is still spreading appears here for some seconds.
	Disagreements []gossip.Disagreement `json:"disagreements,omitempty"`
}

// NewGossipViews combines a server's answers with the reasons of missing ones.
func NewGossipViews(from string, views []gossip.View, silent map[string]error) GossipViews {
	answer := GossipViews{From: from, Views: views, Disagreements: gossip.Disagreements(views)}
	for name, err := range silent {
		if answer.Silent == nil {
			answer.Silent = map[string]string{}
		}
		answer.Silent[name] = err.Error()
	}
	return answer
}
