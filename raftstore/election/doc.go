// Package election finds out that a leader is lost, sooner than Raft's heartbeats do, and makes one
// server campaign for its place.
//
//	lostleader.go  a leader whose process has died: its connections break and its address refuses
//	detector.go    a leader that is silent: it says nothing for too long to a quorum
//	noleader.go    an election that brought no leader
//	nominate.go    a leader whose own disk hangs: it asks another server to lead
//	followers.go   the members that do not answer this server while it leads
//	history.go     the last changes of leaders, and why they were
//
// No mistake here does harm to the data: in Raft any server may campaign at any time. It costs a
// change of leaders. Each doubt is settled by a quorum, and the server with the longest log of
// those that doubt campaigns.
package election
