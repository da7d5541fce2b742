// Package readindex finds the revision that a linearizable read needs: one that reflects everything
// acknowledged before the read began. The local state answers once it has come so far.
//
//	reader.go  a read on any server: on the leader, or through one question to it
//	rounds.go  one exchange serves all readers that wait when it begins
//	quorum.go  the leader makes sure that it still leads
//
// What holds: a revision is confirmed by a quorum after the read began. No clock is asked, and no
// lease is believed: a leader that was frozen finds out before it answers.
package readindex
