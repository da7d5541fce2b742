// Package cache keeps the scheduler's view of the cluster: every node with its pods. Assumed pods
// are included: their node is decided, and no informer has shown the binding yet.
//
// Invariants:
//   - A pod is counted on exactly one node at a time, for any order of informer events, Assume and
//     Forget.
//   - An assumed pod is counted until an informer event confirms it, Forget drops it, or it expires
//     after FinishBinding.
//   - Every change of a node stamps it with the next generation. A snapshot copies only the nodes
//     with a newer stamp than its own.
//
// It is not a source of truth for anything outside the scheduler.
package cache
