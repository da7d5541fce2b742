// Package leader is the time in which this server leads: it begins and ends with Raft's word and
// with the health of the disk, and leadership is handed over here.
//
//	term.go      the term in which this server leads, if it does
//	follow.go    what begins it and what ends it
//	transfer.go  handing leadership over, because somebody wants it or this server stops
//	fulldisk.go  handing it over because the disk is full
//
// What holds:
//   - a term begins with an entry of its own that is applied, so that everything is that was
//     acknowledged by leaders before;
//   - the work of a leader is one list under one context, which ends with the term; Wait waits for
//     all of it;
//   - nobody is asked to lead of whom it is known that it cannot.
//
// Who is elected is Raft's matter, and package election's.
package leader
