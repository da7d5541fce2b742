package raftfix

import "github.com/hashicorp/raft"

// Transport is Raft's transport with all optional interfaces that Raft looks for.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}
