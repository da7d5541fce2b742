// Package gossip is the pool of all nodes, servers and agents, over hashicorp/memberlist.
//
// A key of the pool lets a machine send, but does not authenticate it. Each member's metadata has a
// credential that the cluster's CA signed for its name and role. It also has a signature by the
// credential's key over its name, address and facts. A node without them is not admitted to the
// pool.
//
// memberlist has no such proof for "suspect" and "dead" messages. A holder of the key can make a
// living member look dead until it refutes that. That is one reason why gossip is evidence and
// never a verdict.
package gossip
