// Package extender asks HTTP servers of users, extenders, for their part in scheduling, by the
// protocol of k8s.io/kube-scheduler/extender/v1: which nodes take a pod, how good they are, which
// pods may be evicted, and the binding itself.
//
// Invariants:
//   - A call ends with its context, or when the extender's time is up, whatever the extender does.
//   - An answer can narrow what the scheduler has decided, never widen it: a node that was not
//     asked about, or a victim that is not less important than the pod, makes the answer an error.
//   - An error of an extender that is not ignorable fails the attempt, and the pod is tried again.
//     An ignorable one is as if it were not there. Errors while scoring are never more than that.
//
// Filter, Prioritize and Preempt are called in the scheduling loop: a slow extender slows it down.
package extender
