// Package nodeauth authorizes kubelets. A kubelet may do what the role system:node says, and of
// that only what its own pods give it reason for: it reads a Secret or ConfigMap that a pod bound
// to its node refers to, asks for tokens of service accounts that its pods run as, and lists only
// its own pods. What it may write is narrowed further by the NodeRestriction admission.
//
// Decisions come from the pods of the informer, by an index on the node name; there is no graph to
// keep in step. A pod that the informer has not seen yet is not a reason, so a kubelet may be
// refused in the first moments and must try again, as it does.
package nodeauth
