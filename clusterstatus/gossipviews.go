package clusterstatus

import "github.com/barque/barque/membership/gossip"

// GossipPath answers with GossipViews: what the members of the pool see of each other. The
// parameter agents=true asks the agents, too. RBAC says who may.
const GossipPath = "/barque/v1/gossip"

// GossipViews are the views of the members that were asked.
type GossipViews struct {
	From string `json:"from"` // the server that answers
	// Views begin with that of From.
	Views []gossip.View `json:"views"`
	// Silent are living members that did not answer From, with the reason.
	Silent map[string]string `json:"silent,omitempty"`
	// Disagreements are the members of which the views differ, such as one that A sees and B does
	// not. A change that has not spread yet shows here for some seconds.
	Disagreements []gossip.Disagreement `json:"disagreements,omitempty"`
}

// NewGossipViews puts together the answers that a server got, and why others gave none.
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
