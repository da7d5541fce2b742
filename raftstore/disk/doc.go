// Package disk owns the data directory of a server: its identity, its marks, the log and the
// snapshots, and the reserve for a full volume.
//
// One process works in a directory at a time (Lock). Open reads the newest snapshot that is whole
// into the state machine, and the log behind it. Destructive steps leave a mark or a plan first, so
// that a crash in the middle is finished at the next start.
//
// It knows no other server, and of Raft only what it takes to shorten the log.
package disk
