// Package enroll brings a node into a cluster and keeps its record of the cluster. The record on
// disk has the progress of each procedure: creating a cluster, also from a backup, joining, joining
// again, following a cluster's successor, and forgetting removed nodes.
//
// A node killed at any step continues there: each step is on disk before the next begins. The lock
// on the data directory excludes a second process. The caller passes the data of stores, backups
// and the API; the package depends on none of them.
package enroll
