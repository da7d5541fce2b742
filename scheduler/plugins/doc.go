// Package plugins holds the plugins of the default scheduler profile, one per file, with the names
// and the meaning that Kubernetes documents for them.
//
// Invariants: a filter decides from the pod, the node it is given and what its PreFilter wrote to
// the cycle's state, never from the clock or the API; reasons are constant per cause, because
// users read them counted over nodes. What is needed to make a decision binding (the write of the
// binding itself) is in Binder and nowhere else.
package plugins
