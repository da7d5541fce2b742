// Package autopilot decides the leader's next change of the group's members: which server gets a
// vote, loses it, or is removed, and when no change is allowed.
//
// Decide is pure: it takes the leader's observation and returns one step at most. The caller
// carries it out and observes again before the next one. If the leader dies before or after a step,
// the next leader decides again from the same facts. Memory between two steps is in the group's
// replicated state: a group.Decision.
//
// Invariants:
//
//   - no step takes a vote away if the remaining able voters would be no quorum;
//   - a vote is given only to a server that has caught up, is healthy, reaches all voters and is
//     reached by them, and has been so for a time without a break;
//   - a dead server is removed only if as many voters as are wanted remain, without those that are
//     to leave;
//   - no silent server is removed that a voter reaches: the leader's network is at fault then;
//   - a departure that is blocked for lack of a quorum blocks no other step;
//   - a server that dies before it has its vote is dropped after a time, and may join again;
//   - one step at a time.
//
// A Manager is the thin actor around Decide: it observes the members, carries out the step, and
// makes the changes that users request. Methods that package node does not call are exported for
// the tests of whole groups there.
package autopilot
