// Package mvcc keeps the state of one replica in memory: an ordered tree of items, the history that
// leads to it, and the watchers of this history.
//
// Invariants:
//
//   - one goroutine writes (Apply, Compact, Restore, Publish); any goroutine reads, without a lock;
//   - the effects of Apply become visible at Publish, all at one moment: to views, to watchers and
//     to the callers that wait for a revision;
//   - a published tree never changes. A view is a pointer to one;
//   - history is the events of the revisions in (Compacted, Revision], without a gap. There are
//     views at each revision in [Compacted, Revision], and watchers can start after each of them;
//   - applying uses no clock: time comes with the call.
//
// It does not make data durable, and does not depend on Raft: package fsm drives it.
package mvcc
