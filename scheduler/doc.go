// Package scheduler chooses a node for every pod that has none, and writes the choice.
//
// One leadership term is one call of Run. It builds its state (cache, queue, plugins) from warm
// informers and drops all of it at the end, so nothing decided in one term can leak into the next.
//
//	informers ──events──▶ cache, queue          (informer goroutines)
//	queue ──Pop──▶ decide on a snapshot ──▶ assume        (the loop, one goroutine)
//	                     │                     └──▶ bind       (writes, one goroutine a pod)
//	                     └ fits nowhere ──▶ condition, event, back to the queue
//
// Invariants:
//   - The loop never waits for the API, and for an extender only as long as its time-out allows.
//     What it decides is assumed in the cache at once, and the next decision counts it.
//   - A pod is bound at most once: by its UID, with a client that is fenced by the term, and never
//     while it is assumed.
//   - A term starts deciding only when its informers show every pod as new as a linearizable list
//     at the term's start: what the leader before it has bound is never overlooked.
//   - With the same seed, cluster and order of events, two schedulers decide the same.
//
// It is not for evicting pods (controllers do that), except to make room for a more important one.
package scheduler
