// Package autopilot decides the leader's next change of the group's members: which server gets a
// vote, loses it, or is taken out, and when none of that may happen.
//
// Decide is pure: it takes the leader's observation and returns one step at most. The caller
// carries it out and observes anew before the next one, so a step that did not happen, because the
// leader died before or after it, is decided again by the next leader from the same facts. What has
// to be remembered between two steps stands in the group's own, replicated state: a group.Decision.
//
// What holds:
//   - no step takes a vote away when the voters that stay and are able would be no quorum;
//   - a vote is given only to a server that has caught up, is well, reaches all voters and is
//     reached by them, and has been all that for a time without a break;
//   - a server is taken out for being dead only when as many voters as are wanted stay without it,
//     and without those that are to go;
//   - no silent server is taken out that a voter reaches: the leader's network is at fault then;
//   - a departure that is blocked for lack of a quorum holds up no other step;
//   - a server that dies before it has its vote is dropped after a time, and may join again;
//   - one step at a time.
//
// A Manager is the thin actor around Decide: it observes the members, carries out the step, and
// makes the changes that people ask for. The methods that package node does not call are exported
// for the tests of a whole group, which are there.
package autopilot
