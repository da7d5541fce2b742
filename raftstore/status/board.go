package status

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
)

// Server is the Board's interface of the server.
type Server interface {
	ID() string
	// Leader is the ID of the leader that the server follows, or is; empty if unknown.
	Leader() string
	// Status is how the server sees itself, without a Detail.
	Status() Status
	Members() []group.Member
	// Tell sends a message in JSON to a member and returns the answer. Ping only exchanges an empty
	// message with it.
	Tell(ctx context.Context, m group.Member, kind byte, message any) ([]byte, error)
	Ping(ctx context.Context, id string) error
	// SchedulingDelay is that of this server, and LearnDelay takes that of another one.
	SchedulingDelay() time.Duration
	LearnDelay(id string, delay time.Duration)
}

// Board asks the members for their status, and answers for this server.
type Board struct {
	server Server
	report func(ctx context.Context) []byte
}

// NewBoard returns the board of a server. report is the program's part of a Detail; it may be nil.
func NewBoard(server Server, report func(ctx context.Context) []byte) *Board {
	return &Board{server, report}
}

// All asks all members for their status at once, with a timeout for each.
func (b *Board) All(ctx context.Context) []PeerStatus { return b.all(ctx, statusQuestion{}) }

// Details asks all members for their status with its Detail at once, with a timeout for each. It
// takes longer than All if others cannot reach a member.
func (b *Board) Details(ctx context.Context) []PeerStatus {
	return b.all(ctx, statusQuestion{Detail: true})
}

func (b *Board) all(ctx context.Context, q statusQuestion) []PeerStatus {
	members := b.server.Members()
	statuses := make([]PeerStatus, len(members))
	var asking sync.WaitGroup
	for i, m := range members {
		asking.Go(func() {
			statuses[i].Member = m
			status, err := b.ask(ctx, m, q)
			if err == nil && status.ID != m.ID {
				err = fmt.Errorf("server %q answers at the address %s", status.ID, m.Address)
			}
			if err != nil {
				statuses[i].Error = err.Error()
				return
			}
			statuses[i].Status = status
		})
	}
	asking.Wait()
	return statuses
}

// Ask returns the status of a member.
func (b *Board) Ask(ctx context.Context, m group.Member) (*Status, error) {
	return b.ask(ctx, m, statusQuestion{})
}

func (b *Board) ask(ctx context.Context, m group.Member, q statusQuestion) (*Status, error) {
	if m.Self {
		status := b.own(ctx, q)
		return &status, nil
	}
	q.From, q.SchedulingDelay = b.server.ID(), b.server.SchedulingDelay()
	data, err := b.server.Tell(ctx, m, peer.CallStatus, q)
	if err != nil {
		return nil, err
	}
	status := new(Status)
	if err := json.Unmarshal(data, status); err != nil {
		return nil, fmt.Errorf("status of server %q: %w", m.ID, err)
	}
	b.server.LearnDelay(status.ID, status.SchedulingDelay)
	return status, nil
}

func (b *Board) own(ctx context.Context, q statusQuestion) Status {
	if q.Detail {
		return b.detailed(ctx)
	}
	return b.server.Status()
}

// Handle answers peer.CallStatus of another server.
func (b *Board) Handle(ctx context.Context, payload []byte) (byte, []byte) {
	var q statusQuestion
	if len(payload) > 0 {
		if err := json.Unmarshal(payload, &q); err != nil {
			return peer.AnswerRefused, []byte(err.Error())
		}
	}
	if q.From != "" {
		b.server.LearnDelay(q.From, q.SchedulingDelay)
	}
	data, err := json.Marshal(b.own(ctx, q))
	if err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, data
}
