// Package peer is how servers reach each other: the greeting in which both ends of a connection
// name themselves, the address of each member, links for calls, the kinds of calls and of
// answers, and the connections of Raft. Peers also looks for the other servers while this one is
// out of touch.
//
// A server is known by its ID. A connection is meant for an ID, and a server of another cluster or
// with another ID closes it, so that no vote is counted for the wrong server.
//
// It does not know the purposes of calls: package node gives each to the part that answers it.
package peer
