// Package scheduler chooses a node for every pod that has none, and writes the choice.
//
// One leadership term is one call of Run. It builds its state (cache, queue, plugins) from synced
// informers and drops all of it at the end. So no decision of one term can leak into the next.
//
//	informers ──events──▶ cache, queue          (informer goroutines)
//	queue ──Pop──▶ decide on a snapshot ──▶ assume        (the loop, one goroutine)
//	                     │                     └──▶ bind       (writes, one goroutine a pod)
//	                     └ fits nowhere ──▶ condition, event, back to the queue
//
// Invariants:
//   - The loop never waits for the API. It waits for an extender only up to its time-out. A
//     decision is assumed in the cache at once, and the next decision counts it.
//   - A pod is bound at most once: by its UID, with a client that is fenced by the term, and never
//     while it is assumed.
//   - A term starts deciding when its informers show every pod as new as a linearizable list at the
//     term's start. It therefore sees every binding of the last leader.
//   - With the same seed, cluster and order of events, two schedulers decide the same.
//
// It is not for evicting pods (controllers do that), except to make room for a more important one.
package scheduler
