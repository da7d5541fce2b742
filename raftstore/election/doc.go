// Package election finds out that a leader is lost, sooner than Raft's heartbeats do, and makes one
// server campaign for its place.
//
//	detector.go    the failure detector, which asks three questions about the leader:
//	  gone.go        has its process died? Its connections break and its address refuses
//	  silent.go      does it say nothing for too long?
//	  absent.go      has an election brought none?
//	campaign.go    a quorum answers the same, and the server with the longest log campaigns
//	nominate.go    a leader whose own disk hangs: it asks another server to lead
//	followers.go   the members that do not answer this server while it leads
//	followed.go    the leader that this server follows
//	history.go     the last changes of leaders, and why they were
//
// No mistake here does harm to the data: in Raft any server may campaign at any time. It costs a
// change of leaders. Each doubt is settled by a quorum, and the server with the longest log of
// those that doubt campaigns.
package election
