// Package plugins has the plugins of the default scheduler profile, one per file. Their names and
// meaning are those that Kubernetes documents.
//
// Invariants: a filter decides from the pod, the node, and the cycle's state that its PreFilter
// wrote. It reads neither the clock nor the API. A cause always has the same reason text, because
// users read reasons counted over nodes. Only Binder writes the binding.
package plugins
