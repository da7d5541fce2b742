// Package cache keeps the scheduler's view of the cluster: every node with the pods that occupy
// it, including pods that are assumed, that is, decided but not yet seen as bound.
//
// Invariants:
//   - A pod is counted on exactly one node at a time, however informer events, Assume and Forget
//     are interleaved.
//   - An assumed pod is counted until it is confirmed by an informer event, forgotten, or expired
//     after its binding was reported as finished.
//   - Every change of a node stamps it with the next generation; a snapshot copies only the nodes
//     whose stamp is newer than its own.
//
// It is not a source of truth for anything outside the scheduler.
package cache
