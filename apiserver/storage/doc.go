// Package storage keeps Kubernetes API objects in Barque's datastore. It is the k8s.io/apiserver
// storage.Interface over the contract of package raftstore. There is no watch cache over it: the
// store is in this process, and keeps the history that watches need. Objects that are read often
// are kept decoded, in an objectcache.
//
// It owns the mapping of objects to keys and values: how an object is encoded (and encrypted, when
// a transformer is given), and how revisions become resourceVersions. Packages beside it have the
// parts that do not touch stored objects:
//
//	restoptions  puts a storage under each registry, and gives it its place among the keys
//	fieldindex   wakes a watch for the objects with its value of a field
//	storeerror   the store's errors as API errors that a client can distinguish
//	leaderterm   the Raft term that fences the writes of leader-only work
//
// Invariants:
//   - every write is guarded by the revision that it was computed from; nothing is overwritten
//     unseen, and an update that changes nothing writes nothing;
//   - a read without a resourceVersion is linearizable, and one of any state (resourceVersion 0) is
//     no older than the newest state was when the server started;
//   - a list is one snapshot of the store, and its continue token keeps naming that snapshot until
//     it leaves history, which is answered with 410 and a token for going on inconsistently;
//   - a watch delivers every revision after its start, in order, or ends with an error event;
//   - "not executed" (503; with Retry-After, unless there has been no leader for long) and "outcome
//     unknown" (504) are never confused.
//
// It is not the place for anything that knows a kind: defaulting, validation and strategies live
// in the registries above. It does not decide when history is compacted; the store does.
package storage
