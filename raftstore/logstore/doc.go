// Package logstore keeps Raft's log, and its term and vote, on disk.
//
// Invariants:
//
//   - acknowledged data survive a crash, or opening reports exactly the missing part and refuses:
//     Open never returns a log that is shorter than the promised one, or differs from it;
//   - a write that takes longer than Options.Timeout is reported while it lasts (Watchdog).
//
// It does not keep snapshots: package node does. It does not interpret entries.
package logstore
