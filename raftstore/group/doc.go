// Package group has what the servers of a group know of each other: members, what was decided about
// them, removals, successions of clusters, and the time-outs that all have in common.
//
// Decisions and successions are part of the replicated state, under keys of the store's own. This
// package reads them from a view; package autopilot decides, and package recovery makes a cluster
// the successor of another one.
//
// It is vocabulary: it opens no connection and no file, and knows nothing of Raft.
package group
