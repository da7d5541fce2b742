// Package rpc carries calls between servers: frames on one connection, many calls at a time.
//
//	frame = length(4) call(8) kind(1) payload
//
// Numbers are little-endian, and length counts the bytes after it. The answer to a call carries its
// number. The caller and the peer agree on the kinds' meanings, except for Ping, which asks for a
// sign of life.
//
// Invariants:
//
//   - memory is taken as the bytes arrive, not when a length announces them;
//   - a peer that stops in the middle of a frame, or takes no answers, loses the connection; one
//     that is idle keeps it;
//   - a peer has a bounded number of calls open on a connection, and then waits;
//   - the caller learns whether the peer can have received the request.
//
// It does not authenticate the peer: its connections are already authenticated.
package rpc
