// Package exchange exchanges the CAs of a cluster for new ones, while everything runs.
//
//	spreading   the new CA is made known to all nodes, and its key to all servers; the old one issues
//	issuing     the new CA issues; all certificates are renewed; both are believed
//	settled     the old CA is dropped
//
// The key that signs the tokens of service accounts goes through the same steps at the same time:
// all servers verify by the new one before any signs with it. The old one verifies for
// pki.AccountKeyGrace after the end. It can be exchanged alone, in the same steps: then the bundle
// has one CA throughout, agents are not waited for, and certificates and join tokens stay.
//
// Each purpose of certificates (pki.Purpose) goes through the steps with the CA for clients. A
// cluster with one CA for all purposes gets one for each, unless a server is of a version without
// them. For an operator's CA the other purposes have CAs of the cluster's own.
//
// It is a rollover (package rollover) whose State is public. Servers fetch the keys that they
// lack from each other. Agents see in gossip that servers know of a newer generation, and renew
// their certificates, with which they get the CAs. Every node announces in gossip the generation
// that it has taken over, after all of its certificates are renewed. The leader makes the next
// step when every node has taken over the last one, or, if the operator forces it, every node
// that shows life.
//
// Beside the guarantees of every rollover, these always hold:
//   - no node issues by a CA that some node does not believe yet, and none is dropped by which
//     somebody's certificates still are, unless it is forced;
//   - to undo or force an exchange needs no key, and waits for no node: the only server with a
//     key may be lost;
//   - private keys are never in the store.
package exchange
