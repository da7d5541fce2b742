// Package nodeauth authorizes kubelets. A kubelet may do what the role system:node says, and of
// that only what its own pods give it reason for: it reads a Secret, ConfigMap or claim for devices
// that a pod bound to its node refers to, and the volume of a pod's claim, asks for tokens of
// service accounts that its pods run as, and lists only its own pods and the requests for
// certificates that it has made for them. Of the pods of other nodes it sees labels, addresses and
// named ports, which network policies are made of. What it may write is narrowed further by the
// NodeRestriction admission.
//
// Decisions come from the pods of the informer, by an index on the node name; there is no graph to
// keep in step. Before a kubelet is refused, the pods of its node, and the volume that it asks for,
// are read from the store: the kubelet may have learnt of a binding before the informer. Refusals
// are bounded in what they cost: requests of one node share the reads of its pods, and a node gets
// 25 of them at once and 5 a second. One that asks for more is refused by what the informer knows.
package nodeauth
