// Package backups makes, keeps and lists a server's backups, restores one into a running cluster or
// into the store of a new one, and makes a server that has lost its cluster the first of a new one.
//
// Each server makes its own backups. A recovery is a plan on disk, whose steps can be repeated.
package backups
