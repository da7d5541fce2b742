// Package nodeauth authorizes kubelets. A kubelet has the permissions of the role system:node,
// narrowed to the needs of its own pods. It reads a Secret, ConfigMap or claim for devices that a
// pod bound to its node refers to, and the volume of a pod's claim. It reads the Secret that a
// BGPPeer of its node names, for the password of the session. It requests tokens of the
// service accounts of its pods. It lists only its own pods and the requests for certificates that
// it has made for them. Of the pods of other nodes it sees labels, addresses and named ports, for
// network policies. The NodeRestriction admission narrows its writes further.
//
// Decisions come from the pods of the informer, by an index on the node name; there is no graph to
// keep in step. Before a kubelet is refused, the pods of its node, and the requested volume, are
// read from the store: the kubelet may have learnt of a binding before the informer. The cost of
// refusals is bounded: requests of one node share the reads of its pods, and a node gets 25 of them
// at once and 5 a second. A request beyond that is decided by the informer alone.
package nodeauth
