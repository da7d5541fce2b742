// Package leader is the time in which this server leads: it begins and ends with Raft's word and
// with the health of the disk, and leadership is handed over here.
//
//	term.go      the term in which this server leads, if it does
//	follow.go    what begins it and what ends it
//	transfer.go  handing leadership over, on request or because this server stops
//	fulldisk.go  handing it over because the disk is full
//
// What holds:
//   - a term begins with an entry of its own that is applied, so that everything is that was
//     acknowledged by leaders before;
//   - the work of a leader is one list under one context, which ends with the term; Wait waits for
//     all of it;
//   - no server is asked to lead that is known to be unable to.
//
// Raft and package election decide which server is elected.
package leader
