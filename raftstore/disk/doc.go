// Package disk owns the data directory of a server: who it belongs to, what has become of the
// server (marks), the log and the snapshots, and room that is held for the time when the volume is
// full.
//
// One process works in a directory at a time (Lock). Open reads the newest snapshot that is whole
// into the state machine, and the log behind it. Destructive steps leave a mark or a plan first, so
// that a crash in the middle is finished at the next start.
//
// It knows no other server, and of Raft only what it takes to shorten the log.
package disk
