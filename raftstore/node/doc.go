// Package node is one server of a group: it runs Raft over the state machine, brings requests from
// any server into the log, and wires the other parts (wiring.go).
//
// A request's way: Propose on any server → over the peer connection to the leader → the proposer,
// which gathers the requests of many callers into one log entry → Raft → the state machine → back.
//
// Invariants:
//
//   - ErrUnavailable is only returned for a request that is not in the log, and will not be, by
//     this
//     call. If that is uncertain the error is ErrUnknownOutcome;
//   - all goroutines belong to the Node, and Close waits for them.
package node
