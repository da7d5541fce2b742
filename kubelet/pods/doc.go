// Package pods runs the pods of a node: it makes each pod's containers match its spec, reports its
// status, and ends it in order.
//
// One goroutine owns one pod, by UID. Changes at the API server and at the runtime reach it as one
// merged wake-up. Then it looks at everything, decides by a pure function of package lifecycle and
// acts. It holds no view of the runtime between two looks. Only slow steps run beside it: pulls,
// hooks and stopping containers.
//
// Invariants: a pod goes from syncing to terminating to terminated and never back; ending this
// process ends no pod; the pod's object is given up (Status.Finish) only when nothing of the pod is
// left on the node.
//
// Its sub-packages are lifecycle (decisions and the status), runtimestate (reading the runtime),
// runtimeconfig (configurations of sandboxes and containers) and podlogs (directories of logs).
package pods
