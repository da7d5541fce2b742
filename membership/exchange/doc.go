// Package exchange exchanges the CA of a cluster for a new one, while everything runs.
//
//	spreading   the new CA is made known to all nodes, and its key to all servers; the old one issues
//	issuing     the new CA issues; all certificates are renewed; both are believed
//	settled     the old CA is dropped
//
// The key that signs the tokens of service accounts goes through the same steps at the same time:
// all servers verify by the new one before any signs with it. The old one verifies for
// pki.AccountKeyGrace after the end.
//
// What all servers share is one State in the store: public, replicated, with a generation that
// grows with each step. Every server follows it: fetches the keys that it lacks from another
// server, writes all that down, and believes it then. Agents see in gossip that servers know of a
// newer generation, and renew their certificates, with which they are told of the CAs. Every node
// tells in gossip the generation that it has taken over, after all of its certificates are renewed.
// The leader makes the next step when everybody has taken over the last one, or, if the operator
// forces it, everybody who shows life.
//
// What always holds:
//   - no node issues by a CA that some node does not believe yet, and none is dropped by which
//     somebody's certificates still are, unless it is forced;
//   - each step is one write that names the one before; it can be made by any leader, after any
//     crash;
//   - a node never goes back to an older generation. A backup that is restored brings an old State
//     back into the store: the leader writes the newer one again. The state of another cluster is
//     not followed;
//   - what undoes or forces an exchange needs no key, and waits for nobody: the only server with a
//     key may be lost;
//   - private keys are never in the store.
package exchange
