// Package mvcc keeps the state of one replica in memory: an ordered tree of items, the history
// that leads to it, and the watchers that read this history.
//
// What holds:
//   - one goroutine writes (Apply, Compact, Restore, Publish); anybody reads, without a lock;
//   - what Apply did becomes visible at Publish, all of it at one moment: to views, to watchers and
//     to the callers that wait for a revision;
//   - a published tree never changes. A view is a pointer to one;
//   - history is the events of the revisions in (Compacted, Revision], without a gap. Views can be
//     had at each revision in [Compacted, Revision], watchers can start after each of them;
//   - nothing here asks a clock while it applies: time comes with the call.
//
// It is not for durability, and it knows nothing of Raft: package fsm drives it.
package mvcc
