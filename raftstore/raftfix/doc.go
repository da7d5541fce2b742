// Package raftfix has all workarounds for hashicorp/raft 1.8.0, and no other package has any. Each
// names its upstream issue, or has a test that reproduces the fault against Raft, so that it can be
// removed when Raft is fixed.
//
//	filter.go           messages that come late, and snapshots of entries that a server has
//	prevotes.go         a vote that is promised twice
//	log.go              a log that Raft would drop when it has installed a snapshot
//	pipeline.go         a pipeline in which a message and an answer wait for each other (raft#612)
//	votes.go            votes asked for over a connection that is broken
//	sendgate.go         heartbeats of a leader whose disk hangs
//	heartbeats.go       heartbeats that Raft handles after its end
//	lease.go            a lease that cannot be extended
//	commitbroadcast.go  followers that learn tens of milliseconds later what is committed
//	transfers.go        a second transfer of leadership while the first one's task is left
//	questions.go        futures that Raft answers late
//	leader.go           a leader that a candidate names
//	bootstrap.go        a crash between the two writes of a bootstrap
//
// A workaround depends on Raft and the log, and on nothing of the store above them.
package raftfix
