package raftfix

import (
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/hashicorp/raft"
)

// votes is Raft's transport. It repeats a request for a vote over another connection if the first
// one turns out to be broken. Raft keeps unused connections from before a restart of the other
// server. For a vote that matters: Raft takes the error for a refusal, and asks again only in the
// next election. A server that is asked twice gives the same vote twice.
type votes struct {
	Transport
	idle int // connections to one server that may be broken
}

// RepeatVotes returns a transport that asks for a vote again when a connection was broken. idle is
// how many connections Raft keeps to each server.
func RepeatVotes(inner Transport, idle int) Transport { return &votes{inner, idle} }

// RequestVote implements raft.Transport.
func (v *votes) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return v.repeat(func() error { return v.Transport.RequestVote(id, target, args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (v *votes) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return v.repeat(func() error { return v.Transport.RequestPreVote(id, target, args, resp) })
}

func (v *votes) repeat(ask func() error) error {
	var err error
	for range v.idle + 1 { // one more than there may be of them
		err = ask()
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) &&
			!errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			break
		}
	}
	return err
}
