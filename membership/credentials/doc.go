// Package credentials keeps a node's credentials valid: a server's CAs with their keys on disk, the
// certificates of servers and agents, their proof for gossip, and the gossip keys. It makes
// connections with them.
//
// The node's record stores the cluster's data; the package sees it as an interface.
package credentials
