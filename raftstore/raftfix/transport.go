package raftfix

import "github.com/hashicorp/raft"

// Transport is Raft's transport, with all that Raft looks for in one.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}
