package enroll

import "cmp"

// GossipPort is the port of gossip, TCP and UDP, in clusters that begin now. A node finds it in the
// description of its cluster, so that all nodes have one port, which firewalls let pass.
const GossipPort = 6445

// formerGossipPort is that of clusters of versions from before 29 November 2026: memberlist's
// default. Speakers of MetalLB and Docker's swarm listen there on the addresses of machines, too.
const formerGossipPort = 7946

// GossipPort returns the port of this node's gossip. chosen is the operator's choice, or 0.
func (r *Record) GossipPort(chosen uint16) uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(chosen, r.Cluster.GossipPort, formerGossipPort)
}
