// Package containerd runs the node's own containerd: a child process that is
// the barque binary itself under another first argument (Main), with its
// configuration, root, state and socket below the node's data directory.
//
// Invariants:
//   - Pods outlive everything here. Their shims are no children of containerd's
//     life: when containerd or Barque ends, in order or by kill -9, containers
//     run on, and the next containerd finds them again.
//   - At most one containerd runs per data directory. One that an earlier
//     Barque left behind is ended before a new one starts.
//   - Nothing of two data directories meets, so several nodes share a machine.
//
// The package speaks to containerd only to import the built-in images; pods and
// pulls are the kubelet's, through CRI. A containerd or CRI-O that the operator
// brings is not supervised and needs nothing from here.
package containerd
