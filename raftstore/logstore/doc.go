// Package logstore keeps Raft's log, and its term and vote, on disk.
//
// What holds:
//   - what a write has acknowledged is there after a crash, or opening says exactly what is missing
//     and refuses: Open never returns a log that is shorter than, or differs from, the one that was
//     promised;
//   - a write that takes longer than Options.Timeout is told of while it lasts (Watchdog).
//
// It is not for snapshots: package node keeps those. It knows nothing of what entries mean.
package logstore
