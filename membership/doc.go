// Package membership knows who belongs to the cluster.
//
// Its parts: gossip (who is alive, by memberlist, each member proven by a credential of the
// cluster's CA), token (join tokens, kept as Kubernetes bootstrap-token Secrets), join (what a
// machine and a server say to each other when it joins), keyring (another key for gossip while it
// runs), credentials (what a node proves itself with), enroll (how a node gets into a cluster, and
// what it remembers of it), liveness (who lives, by all that is heard of it) and balancer (one
// local address that leads to a living server).
//
// It is not for verdicts: gossip is evidence, and what follows from it is the node controller's to
// decide. Nor does it replicate anything: who votes is the store's to know.
package membership
