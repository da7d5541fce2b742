// Package gossip is the pool of all nodes, servers and agents, over hashicorp/memberlist.
//
// A key of the pool lets a machine speak; it does not make it believed. Each member's metadata
// carries a credential that the cluster's CA signed for its name and role, and a signature by the
// credential's key over its name, address and facts. A node without one is not let into the pool.
//
// memberlist has no such proof for "suspect" and "dead" messages, so a holder of the key can make
// a living member look dead for a moment (until it refutes). That is one reason why gossip is
// evidence and never a verdict.
package gossip
