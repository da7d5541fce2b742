// Package membership knows the members of the cluster. Its parts:
//
//   - gossip: which nodes are alive, by memberlist. A credential of the cluster's CA proves each
//     member.
//   - token: join tokens, stored beside the objects of the API.
//   - admissions: who joined by which token, and the present key of each server.
//   - join: the protocol between a joining machine and a server.
//   - keyring: replacing the gossip key while it is in use.
//   - credentials: the certificates and keys of a node.
//   - enroll: how a node enters a cluster, and its record of the cluster.
//   - liveness: which nodes live, from all evidence.
//   - balancer: one local address that leads to a living server.
//
// It gives no verdicts: gossip is evidence, and the node controller decides. It replicates nothing
// either: the store knows the voters.
package membership
