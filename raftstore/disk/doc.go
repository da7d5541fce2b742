// Package disk owns the data directory of a server: its identity, its marks, the log and the
// snapshots, and the reserve for a full volume.
//
// One process works in a directory at a time (Lock). Open reads the newest complete snapshot into
// the state machine, and the log after it. Destructive steps leave a mark or a plan first, so that
// the next start finishes an interrupted one.
//
// The package knows no other server, and needs of Raft only the means to shorten the log.
package disk
