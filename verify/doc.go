// Package verify finds out whether a cluster keeps its promises: it works through every API server
// at once, writes down what it was told, and judges that afterwards. It is for operators (`barque
// verify`) and for the tests that break clusters.
//
// What is judged, of ConfigMaps in a namespace of its own:
//   - there is one order of all writes and reads that explains what every client was told
//     (linearizable; porcupine looks for it, key by key);
//   - a write that was acknowledged is in the history at the revision that was told, whole and
//     once; one whose outcome nobody knows is there once or not at all; one that was refused is not
//     there;
//   - a read has what the history has at its revision, and is no older than what anybody was told
//     before it began;
//   - watchers get what happened in order, each change once and none left out, two of them never
//     differ, and progress never overtakes changes;
//   - the revision only grows.
//
// The history is what all watchers together have seen. A server that stays away is not judged for
// what it would have told then, and named; up to where its watcher came it is, and the others are.
//
// The package changes nothing outside its namespace, knows
// nothing about how the cluster runs, and needs no privilege but that of its kubeconfig.
package verify
