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
