package autopilot

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/status"
)

// Options of a Manager. All but CleanAfter, OnRemoved and OnChange are needed.
type Options struct {
	ID string
	// Addr returns where this server is.
	Addr func() string
	// Dir is the data directory, which is marked when this server was taken out; empty in memory.
	Dir        string
	Timeouts   group.Timeouts
	CleanAfter time.Duration
	MinVoters  int
	Now        func() time.Time
	// OnRemoved is called, once, when this server has learned that it was taken out.
	OnRemoved func(group.Removal)
	// OnChange is called on the leader after it has changed the members. It is not if the outcome
	// is unknown, as at the end of its term.
	OnChange func(group.MemberChange)
	Logger   *slog.Logger
}

// Consensus is the Manager's interface of Raft, a *raft.Raft.
type Consensus interface {
	AddVoter(id raft.ServerID, address raft.ServerAddress, prevIndex uint64, timeout time.Duration) raft.IndexFuture
	AddNonvoter(id raft.ServerID, address raft.ServerAddress, prevIndex uint64, timeout time.Duration) raft.IndexFuture
	DemoteVoter(id raft.ServerID, prevIndex uint64, timeout time.Duration) raft.IndexFuture
	RemoveServer(id raft.ServerID, prevIndex uint64, timeout time.Duration) raft.IndexFuture
	LastIndex() uint64
	AppliedIndex() uint64
}

// Peers are the ways to the other servers. It is a *peer.Peers.
type Peers interface {
	Tell(ctx context.Context, m group.Member, kind byte, message any) ([]byte, error)
	TellAt(ctx context.Context, dest string, kind byte, message any) ([]byte, error)
	TellUnknown(ctx context.Context, addr string, kind byte, message any) ([]byte, error)
	Ping(ctx context.Context, id string) error
	AddressOf(m group.Member) string
	Keep()
}

// Survey asks the members for their status. It is a *status.Board.
type Survey interface {
	All(ctx context.Context) []status.PeerStatus
	Ask(ctx context.Context, m group.Member) (*status.Status, error)
}

// Host is the Manager's interface of the server.
type Host interface {
	// Done is closed when the server stops.
	Done() <-chan struct{}
	Members() []group.Member
	State() *mvcc.Store
	// LeaderAt returns how to dial the leader, and whether it is this server. Term is the term in
	// which this server leads; 0 while it does not.
	LeaderAt() (dest string, local bool, err error)
	Term() uint64
	Propose(ctx context.Context, req *command.Request) (command.Outcome, error)
	ReadRevision(ctx context.Context) (uint64, error)
	// Transfer makes a member the leader.
	Transfer(ctx context.Context, m group.Member, why string) error
	// NoOp begins to bring an entry through the log that changes nothing. Begin asks Raft, and
	// returns where the answer comes.
	NoOp() raft.ApplyFuture
	Begin(question func() raft.Future) <-chan error
	// ProposeError converts Raft's error for a change.
	ProposeError(err error) error
	// AppendedAt is the time at which an entry came into this server's log; zero if unknown.
	AppendedAt(index uint64) time.Time
}

// Manager changes the members of the group, on users' requests, and, while this server leads, by
// Decide.
type Manager struct {
	opts   Options
	server Host
	peers  Peers
	survey Survey
	raft   Consensus

	committed Committed
	changing  gate // one change of members at a time
	nudged    chan struct{}
	health    atomic.Pointer[[]group.Health] // while this server leads

	removal sync.Once
	removed atomic.Pointer[group.Removal]
	out     chan struct{} // closed when this server has learned that it was removed
}

// New returns a Manager, which changes nothing before Attach.
func New(opts Options, peers Peers, survey Survey, server Host) *Manager {
	return &Manager{
		opts: opts, server: server, peers: peers, survey: survey,
		changing: make(gate, 1), nudged: make(chan struct{}, 1), out: make(chan struct{}),
	}
}

// Attach is called once, when Raft runs.
func (m *Manager) Attach(c Consensus) { m.raft = c }

// Committed is the newest configuration of the group that this server has applied.
func (m *Manager) Committed() *Committed { return &m.committed }

// Health is how the members do, while this server leads.
func (m *Manager) Health() []group.Health {
	if health := m.health.Load(); health != nil {
		return *health
	}
	return nil
}

// Out returns a channel that is closed when this server has learned that it was taken out.
func (m *Manager) Out() <-chan struct{} { return m.out }

// Removal is the notice of this server's removal; nil before.
func (m *Manager) Removal() *group.Removal { return m.removed.Load() }

func (m *Manager) member(id string) (group.Member, bool) { return group.Find(m.server.Members(), id) }

// decision returns the decision about a server, or about this one, in this server's state.
func (m *Manager) decision(id string) group.Decision {
	return group.DecisionOf(m.server.State().Latest(), id)
}

// Lock waits until no other change of the members is under way, and keeps others from beginning.
func (m *Manager) Lock(ctx context.Context) error { return m.changing.enter(ctx) }

// Unlock lets others begin.
func (m *Manager) Unlock() { m.changing.leave() }
