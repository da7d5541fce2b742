package raftfix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// voter fails to answer a request for a vote so often.
type voter struct {
	Transport
	err   error
	takes time.Duration
	fails int
	asked int
}

func (v *voter) vote() error {
	v.asked++
	if v.asked > v.fails {
		return nil
	}
	<-time.After(v.takes) // brief: virtual time
	return v.err
}

func (v *voter) RequestVote(
	_ raft.ServerID, _ raft.ServerAddress, _ *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	err := v.vote()
	resp.Granted = err == nil
	return err
}

func (v *voter) RequestPreVote(
	_ raft.ServerID, _ raft.ServerAddress, _ *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	err := v.vote()
	resp.Granted = err == nil
	return err
}

// TestRepeatVotes: a vote is asked for again after a broken connection and, while the candidate
// waits, after an answer that came too late. Other errors, and those of a server that is gone, are
// final.
func TestRepeatVotes(t *testing.T) {
	const call, idle = 2 * time.Second, 3
	// The error of Raft's transport hides its kind.
	decoder := fmt.Errorf("msgpack decode error [pos 0]: %v", os.ErrDeadlineExceeded)
	for _, c := range []struct {
		name  string
		voter voter
		waits time.Duration
		asked int
		err   error
	}{
		{"a vote", voter{}, time.Second, 1, nil},
		{"connections from before a restart", voter{err: io.EOF, fails: idle}, time.Second, idle + 1, nil},
		{"connections that always break", voter{err: syscall.ECONNRESET, fails: 100}, time.Second, idle + 1,
			syscall.ECONNRESET},
		{"a server that is gone", voter{err: syscall.ECONNREFUSED, fails: 100}, time.Minute, 1, syscall.ECONNREFUSED},
		{"late, in an ordinary election", voter{err: decoder, takes: call, fails: 100}, time.Second, 1, decoder},
		{"late, where it is waited for", voter{err: decoder, takes: call, fails: 1}, 4 * time.Second, 2, nil},
		{"connected too late",
			voter{err: fmt.Errorf("connect to s1: %w", context.DeadlineExceeded), takes: call, fails: 1},
			4 * time.Second, 2, nil},
		{"never answered", voter{err: decoder, takes: call, fails: 100}, 4 * time.Second, 2, decoder},
	} {
		for kind, ask := range map[string]func(Transport) (bool, error){
			"vote": func(t Transport) (bool, error) {
				var answer raft.RequestVoteResponse
				err := t.RequestVote("s1", "s1", new(raft.RequestVoteRequest), &answer)
				return answer.Granted, err
			},
			"pre-vote": func(t Transport) (bool, error) {
				var answer raft.RequestPreVoteResponse
				err := t.RequestPreVote("s1", "s1", new(raft.RequestPreVoteRequest), &answer)
				return answer.Granted, err
			},
		} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					v := c.voter
					granted, err := ask(RepeatVotes(&v, idle, func(raft.ServerID) time.Duration { return c.waits }))
					if !errors.Is(err, c.err) || granted != (c.err == nil) || v.asked != c.asked {
						t.Errorf("granted %v, %v, asked %d times; want %v, %v, %d times", granted, err, v.asked,
							c.err == nil, c.err, c.asked)
					}
				})
			})
		}
	}
}
