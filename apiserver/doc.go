// Package apiserver is the Kubernetes API over raftstore: k8s.io/apiserver's generic server put
// together with Barque's storage, its declared resources, authentication, authorization and
// admission.
//
// Every control-plane server runs one. It owns the way of a request from the socket to the store:
//
//	TLS → leader-term header → authn → audit → impersonation → priority and fairness → authz
//	    → aggregator → Barque's own kinds → custom resources → not found
//	    → admission → defaulting, validation (package resource and the groups) → storage
//
// The aggregator and the server of custom resources come from libraries; chain.go puts all of them
// together.
//
// Servers share nothing but the store. Tasks that run once in the cluster (default roles,
// system namespaces, repair of allocations) are in LeaderRoutine, which the caller runs on the
// leader only.
//
// Invariants: every write that has been answered went through all of the steps above, in-process
// clients' writes too; a server without a store leader is not ready, and gives the reason.
//
// It is not for reading flags or files that another room owns: certificates, keys and checks are
// handed in through Config.
package apiserver
