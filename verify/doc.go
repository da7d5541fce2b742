// Package verify checks whether a cluster keeps its promises. It works through all API servers at
// once, records the answers, and judges the record afterwards. It is for operators (`barque
// verify`) and for the tests that break clusters.
//
// It judges ConfigMaps in a namespace of its own:
//   - all writes and reads have one order that explains every answer (linearizability; porcupine
//     searches for the order, key by key);
//   - an acknowledged write is in the history once, whole, at its acknowledged revision. A write of
//     unknown outcome is there once or not at all. A refused write is not there;
//   - a read matches the history at its revision, and is no older than any answer before it began;
//   - watchers receive every change once, in order. No two watchers differ, and no progress
//     notification overtakes a change;
//   - the revision only grows.
//
// The history is the union of the events of all watchers. A server without answers at the end is
// named, and its watcher is judged up to its last event. The other servers are judged in full.
//
// The package changes nothing outside its namespace. It does not know how the cluster runs, and
// needs no privilege but its kubeconfig's.
package verify
