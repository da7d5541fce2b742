// Package store runs groups of real server processes of package raftstore, without the rest of the
// cluster, and drives them: start, kill, pause, power failure, partition, load.
//
// A member is this same program, started once more: the program that uses a Group calls
// member.ServeIfMember before anything else. Package member has the driver's calls.
//
// Guarantees:
//   - members speak to each other over TCP and mTLS, by raftstore.NewMux, and keep their data on
//     disk;
//   - nothing outlives the driver, however it ends: members die with it, mounts are in a namespace
//     that dies with it, and files of a killed driver are removed by the next NewGroup;
//   - an operation whose answer did not arrive is ErrGone and counts as of unknown outcome.
//
// It is for chaos-store and bench-store. Faults inside one process and in virtual time are for the
// simulation beside raftstore.
package store
