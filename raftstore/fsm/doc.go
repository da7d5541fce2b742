// Package fsm is the replicated state machine: the one path by which log entries become state, on
// leader, follower and restart alike.
//
// Invariants:
//
//   - Apply is a function of the state and the entry: no clock, no randomness, no I/O, no
//     goroutine, no order of a map. A test reads the sources for it;
//   - an entry that cannot be read stops the machine for good, with a Halt error that has the
//     reason. It never skips one;
//   - a request with an ID takes effect at most once, as long as its origin keeps to the contract
//     of command.Request.Done.
//
// Waiting and answering are the task of package node.
package fsm
