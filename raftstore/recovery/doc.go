// Package recovery works in the directory of a stopped server. Inspect reports its data. Recover
// makes it the only member of a new cluster after the quorum was lost for good.
//
// It reads one directory and asks no other server, so it cannot know whether the others have more:
// operators compare the reports.
package recovery
