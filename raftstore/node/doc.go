// Package node is one server of a group: it runs Raft over the state machine, brings requests into
// the log wherever they come in, and wires the parts that do all else (wiring.go).
//
// A request's way: Propose on any server → over the peer connection to the leader → the proposer,
// which gathers the requests of many callers into one log entry → Raft → the state machine → back.
//
// What holds:
//   - ErrUnavailable is only returned for a request that is not, and will not come, in the log by
//     this call. Where that is not certain the error is ErrUnknownOutcome;
//   - all goroutines belong to the Node, and Close waits for them.
package node
