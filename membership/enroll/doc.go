// Package enroll is how a node gets into a cluster, and what it remembers of it: the record on disk
// with how far that has come, beginning a cluster anew or with what a backup has, joining, joining
// again, following a cluster's successor, and forgetting who is gone.
//
// A node that was killed at any step goes on from it: each is on disk before the next is begun. The
// lock on the data directory keeps a second process out. What a store, a backup or the API has is
// told to it; it knows none of them.
package enroll
