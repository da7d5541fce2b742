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
//     with ErrCompacted.
package raftstore
