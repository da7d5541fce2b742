package clusterstatus

import (
	"net/netip"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// StatusPath answers with a ClusterStatus, subject to RBAC. With the parameter form=observation it
// answers with the Observation, the input of Assemble.
const StatusPath = "/barque/v1/status"

// FormBrief is the value of the parameter form for a Brief.
const FormBrief = "brief"

// Brief is a ClusterStatus for a page that asks for it every few seconds: without the views of
// gossip, and without the agents that are well.
type Brief struct {
	*ClusterStatus
	// Agents is the number of agents, and LivingAgents of those that gossip takes for alive.
	Agents       int `json:"agents"`
	LivingAgents int `json:"livingAgents"`
}

// NewBrief takes the status over.
func NewBrief(s *ClusterStatus) *Brief {
	b := &Brief{ClusterStatus: s}
	var kept []MemberStatus
	for _, m := range s.Members {
		m.Views = nil
		if m.Role == pki.RoleServer {
			kept = append(kept, m)
			continue
		}
		b.Agents++
		if m.Gossip == gossip.Alive {
			b.LivingAgents++
		}
		if (m.Gossip != gossip.Alive || len(m.Faults) > 0) && len(kept) < briefMembers {
			kept = append(kept, m)
		}
	}
	s.Members = kept
	return b
}

// briefMembers bounds the members of a Brief: when a whole zone is away, a page shows no list of
// it.
const briefMembers = 50

// FormObservation is the value of the parameter form.
const FormObservation = "observation"

// Observation is one server's view of the cluster: its own report, and its copies of the others'.
type Observation struct {
	Cluster string                 `json:"cluster"`
	From    string                 `json:"from"`
	Time    time.Time              `json:"time"`
	Nodes   []NodeView             `json:"nodes,omitempty"` // by gossip
	Peers   []raftstore.PeerStatus `json:"peers,omitempty"`
	// Joined is how machines joined last, by their names. Earlier versions do not note it.
	Joined map[string]JoinedStatus `json:"joined,omitempty"`
}

// ViewOf is how gossip sees a member.
func ViewOf(m gossip.Member) NodeView {
	v := NodeView{Node: m.Name, Role: m.Role, Address: m.Addr.Addr().String(), GossipPort: m.Addr.Port(),
		Zone: m.Facts.Zone, Version: m.Facts.Version, State: m.State, Since: m.Since, Faults: m.Facts.Health.Faults()}
	if m.Role == pki.RoleServer {
		v.API = netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort).String()
	}
	return v
}
