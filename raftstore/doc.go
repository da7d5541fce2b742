// Package raftstore is Barque's datastore: a replicated, revisioned, watchable key-value store
// that lives inside the process that uses it. It stands where a Kubernetes cluster usually has
// etcd.
//
// It owns the ordered tree of keys, its history, the Raft group that replicates it, and the
// connection between the servers that carries both. It knows nothing of Kubernetes: keys are
// strings of bytes, values are bytes.
//
// What always holds:
//   - an acknowledged Commit is on the disks of a quorum;
//   - every transaction that changes something gets the next revision, the same on every server;
//   - a View is an immutable picture, linearizable unless asked otherwise;
//   - a Watcher delivers every revision after its start exactly once, in order and whole, or ends
//     with ErrCompacted;
//   - a server whose state is found to differ from that of most servers stops serving, with
//     ErrQuarantined.
//
// Open starts a server of a group, NewInMemory a store of one without disk. Both have the same
// front, Store, over the same state machine.
//
// The parts, from the inside:
//
//	kv         the vocabulary: items, transactions, events, errors
//	mvcc       the state of one replica: tree, history, watchers
//	command    log entries, and the answers to them
//	fsm        the one path by which log entries become state
//	snapshot   the whole state as a file
//	backup     a snapshot with all that it takes to rebuild the cluster from nothing
//	transport  connections between servers: one TLS port, several protocols
//	steward    what to do next about the members of the group, decided purely
//	node       Raft, and what it takes to make it answer: proposing, reading, forwarding, members
//	storetest  the conformance suite, clusters in memory, histories; for tests only
//
// This package puts them together. It also repeats requests over changes of the leader, limits
// what callers may ask, and lets the leader delete what has expired.
package raftstore
