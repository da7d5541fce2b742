// Package plugins has the registry of the scheduler's plugins, the default profile, and the plugins
// about nodes, resources, other pods and preemption, one per file. Those about volumes and devices
// are packages of their own. Names and meaning are those that Kubernetes documents.
//
// Invariants: a filter decides from the pod, the node, and the cycle's state that its PreFilter
// wrote. It reads neither the clock nor the API. A cause always has the same reason text, because
// users read reasons counted over nodes. Only Binder writes the binding.
package plugins
