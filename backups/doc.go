// Package backups makes, keeps and lists a server's backups. It restores one into a running
// cluster, or into the store of a new one. It also turns a server that has lost its cluster into
// the first of a new one.
//
// Each server makes its own backups. A recovery is a plan on disk with repeatable steps.
package backups
