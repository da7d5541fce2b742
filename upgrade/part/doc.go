// Package part is a node's part in an upgrade of the cluster: it gets the program, puts it on
// trial, and confirms it or takes it back, each on the order of the leader.
//
// An order may be repeated, and the answer to each has the node's whole state, so any leader goes
// on. A node believes no leader about a program: it verifies signature, checksum and version of the
// release by itself before the program is put in place. A node with release keys runs no program
// without a signature, whoever orders it.
//
// Servers keep the archives of a release, for the other nodes (Releases).
package part
