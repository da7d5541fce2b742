// Package framework has the types that plugins and the scheduler's loop share. These are the values
// of a cycle (NodeInfo, PodInfo, CycleState), and the Profile, which runs plugins at their
// extension points.
//
// Plugins are written against the public interfaces of k8s.io/kube-scheduler/framework; the types
// here implement that module's value interfaces. The Handle is our own: it gives a plugin only the
// access that plugins need.
//
// Invariants:
//   - A NodeInfo belongs to the snapshot of the running cycle and does not change until the cycle
//     has decided. Plugins must not change it.
//   - One plugin instance serves one leadership term. It must have no goroutine of its own.
//   - A Profile's methods are called from one cycle at a time. Exceptions are Filter and Score,
//     which run in parallel over nodes, and the binding points, which run in parallel over pods.
package framework
