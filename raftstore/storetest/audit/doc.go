// Package audit checks what a store told its clients and watchers against one order of events: the
// log that the watchers together have seen. It holds no server and no clock, and judges while a run
// of real processes goes on. The simulation has another judge, package check, which keeps all and
// names the broken promise.
//
// Clients write values with a token in them (Value), each token in one transaction only, and report
// every call and its outcome; watchers report their batches. The log is then a witness: instead of
// searching for an order that explains the answers, as a checker of linearizability does, the audit
// demands that this order explains them. It takes time in proportion to the operations, however
// long a run is.
//
// What is checked:
//   - a transaction that was acknowledged is in the log at the revision that was told, whole and
//     once;
//   - one of unknown outcome is there whole and once, or not at all;
//   - one that was certainly not executed is not there;
//   - what a call returns reflects, by its revision, every write acknowledged before the call
//     began;
//   - what is read is what the log has at the revision of the read;
//   - every watcher gets the revisions that it wants in order, each once, whole, none left out, and
//     progress only after all that it covers; two watchers never get different contents for one
//     revision;
//   - events tell truly what was there before;
//   - the state of each server is that of the log.
package audit
