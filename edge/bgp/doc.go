// Package bgp announces addresses of Services by BGP: each node that may take clients' packets
// announces them to its routers, which spread connections over the nodes (ECMP).
//
//	peer.go      BGPPeers as users write them
//	objects.go   informers of BGPPeers and AddressPools
//	routes.go    which addresses this node announces, a pure function
//	node.go      the node's part: it follows the objects and leads a speaker
//	sessions.go  what the node says of its sessions
//	speaker/     BGP itself
//
// There is no leader and no claim: two nodes that announce one address are the point. So a node
// needs nobody's consent, and none takes an address away from it. What it needs is knowledge that
// is not too old: see StaleAfter.
package bgp
