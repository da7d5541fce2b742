// Package framework holds what a scheduling plugin and the scheduler's loop share: the values that
// a cycle works on (NodeInfo, PodInfo, CycleState) and the Profile that runs plugins at their
// extension points.
//
// Plugins are written against the public interfaces of k8s.io/kube-scheduler/framework; the types
// here implement that module's value interfaces. What is ours is the Handle: a narrow one, with
// only what a plugin may touch.
//
// Invariants:
//   - A NodeInfo that a plugin sees belongs to the snapshot of the running cycle and does not
//     change until the cycle has decided. Plugins must not change it.
//   - One plugin instance serves one leadership term. It must hold no goroutine of its own.
//   - A Profile's methods are called from one cycle at a time, except Filter and Score, which run
//     in parallel over nodes, and the binding points, which run in parallel over pods.
package framework
