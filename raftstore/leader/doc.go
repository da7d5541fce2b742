// Package leader manages the term in which this server leads. Raft's notifications and the health
// of the disk begin and end it. The package also hands leadership over.
//
//	term.go      the term in which this server leads, if it does
//	follow.go    its begin and its end
//	transfer.go  handing leadership over, on request or because this server stops
//	fulldisk.go  handing it over because the disk is full
//
// Invariants:
//
//   - a term begins with an entry of its own that is applied, and so is every entry that earlier
//     leaders acknowledged;
//   - the work of a leader is one list under one context, which ends with the term; Wait waits for
//     all of it;
//   - no server is asked to lead that is known to be unable to.
//
// Raft and package election decide which server is elected.
package leader
