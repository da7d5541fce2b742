// Package readindex finds the revision for a linearizable read: one that reflects all writes
// acknowledged before the read began. The local state answers once it has that revision.
//
//	reader.go  a read on any server: on the leader, or through one question to it
//	rounds.go  one exchange serves all readers that wait when it begins
//	quorum.go  the leader makes sure that it still leads
//
// Invariant: a quorum confirms a revision after the read began. The package uses no clock and no
// lease: a leader that was frozen finds out before it answers.
package readindex
