// Package recovery works in the directory of a server that does not run: Inspect tells what it
// knows, and Recover makes it the only member of a new cluster after the quorum was lost for good.
//
// It sees one directory and no other server, so it cannot tell whether the others have more: people
// compare the reports.
package recovery
