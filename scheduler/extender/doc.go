// Package extender calls users' HTTP servers, extenders, for their part in scheduling. It speaks
// the protocol of k8s.io/kube-scheduler/extender/v1: filtering and scoring of nodes, preemption,
// and binding.
//
// Invariants:
//   - A call ends with its context or at the extender's time-out.
//   - An answer can narrow the scheduler's choice, never widen it. A node that was not in the
//     request, or a victim that is not less important than the pod, makes the answer an error.
//   - An error of an extender that is not ignorable fails the attempt, and the pod is tried again.
//     An ignorable extender is skipped after an error. Any extender's error in scoring is skipped.
//
// Filter, Prioritize and Preempt are called in the scheduling loop: a slow extender slows it down.
package extender
