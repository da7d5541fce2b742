// Package containerd runs the node's own containerd: a child process that is
// the barque binary itself under another first argument (Main), with its
// configuration, root, state and socket below the node's data directory.
//
// Invariants:
//   - Pods outlive containerd and Barque. When either ends, in order or by kill -9, the shims and
//     containers run on, and the next containerd finds them again.
//   - At most one containerd runs per data directory. One that an earlier Barque left behind is
//     ended before a new one starts.
//   - Two data directories share nothing, so several nodes may share a machine.
//
// The package speaks to containerd only to import the built-in images; pods and pulls are the
// kubelet's, through CRI. A containerd or CRI-O of the operator is not supervised and needs nothing
// from here.
package containerd
