// Package group has the servers' common knowledge of their group: members, decisions about them,
// removals, successions of clusters, and the common timeouts.
//
// Decisions and successions are part of the replicated state, under keys of the store's own. This
// package reads them from a view. Package autopilot decides, and package recovery makes a cluster
// the successor of another one.
//
// The package is vocabulary: it opens no connection and no file, and does not depend on Raft.
package group
