package raftfix

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// votes is Raft's transport. Raft takes an error for a refusal, and asks again only in the next
// election. So a request for a vote is repeated here in two cases. A server that is asked twice
// gives the same vote twice.
//
//   - The connection was broken. Raft keeps unused connections from before a restart of the other
//     server.
//   - The answer did not come in the transport's time, while the candidate still waits for votes. A
//     server that is short of CPU writes its vote, and answers too late.
type votes struct {
	Transport
	idle  int // connections to one server that may be broken
	waits func(id raft.ServerID) time.Duration
}

// RepeatVotes returns a transport that asks for a vote again. idle is how many connections Raft
// keeps to each server. waits returns for how long a candidate waits for the vote of a server,
// before it may begin another election.
func RepeatVotes(inner Transport, idle int, waits func(id raft.ServerID) time.Duration) Transport {
	return &votes{inner, idle, waits}
}

// RequestVote implements raft.Transport.
func (v *votes) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return v.repeat(id, func() error { return v.Transport.RequestVote(id, target, args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (v *votes) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return v.repeat(id, func() error { return v.Transport.RequestPreVote(id, target, args, resp) })
}

func (v *votes) repeat(id raft.ServerID, ask func() error) error {
	began, broken := time.Now(), 0
	for {
		err := ask()
		switch {
		case err == nil:
			return nil
		case isBroken(err) && broken < v.idle: // one more attempt than there may be of them
			broken++
		case isLate(err) && time.Since(began) < v.waits(id):
		default:
			return err
		}
	}
}

// isBroken is whether the connection was broken already.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// isLate is whether the time for the answer has passed. The decoder of Raft's transport hides the
// kind of its error.
func isLate(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(err.Error(), os.ErrDeadlineExceeded.Error()) ||
		errors.Is(err, context.DeadlineExceeded)
}
