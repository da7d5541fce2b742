package integrity

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/mvcc"
)

// Options of a Guard. All but OnNewState and FaultPoint are needed.
type Options struct {
	ServerID string
	// Dir is the data directory; empty in memory, where nothing is marked and no state transferred.
	Dir string
	// Keep leaves the server in quarantine, to be looked at.
	Keep bool
	// OnNewState is called, once, when a right state is on disk for the next start.
	OnNewState func()
	// JoinAgain is the advice for operators how a server joins again as a new one.
	JoinAgain string
	// CallTimeout bounds one call to another server.
	CallTimeout time.Duration
	History     mvcc.Limits
	FaultPoint  func(name string)
	Logger      *slog.Logger
}

// Server is a Guard's view of the server.
type Server interface {
	// CommitIndex is the newest entry known to be on a quorum, AwaitApplied waits until an entry is
	// applied, and State is the state with all applied entries.
	CommitIndex() uint64
	AwaitApplied(ctx context.Context, index uint64) error
	State() *mvcc.Store
	// Snapshots are those on disk. SetAside removes one from the list.
	Snapshots() raft.SnapshotStore
	SetAside(id string, why error) error

	Members() []group.Member
	// Tell sends a message in JSON to a member and returns the answer.
	Tell(ctx context.Context, m group.Member, kind byte, message any) ([]byte, error)
	// TellLeader sends a message to the leader, which is another server, and waits for the answer.
	TellLeader(ctx context.Context, kind byte, message any) error
	// SendState takes a snapshot now, if anything was applied since the last one, and sends it to a
	// member, which gives it to its Guard: see TakeState. It returns that one's error.
	SendState(ctx context.Context, id string) error

	// Leads reports whether Raft has this server for the leader. StepDown ends its work as one, and
	// HandOver makes another voter the leader.
	Leads() bool
	StepDown(cause error)
	HandOver(why string) error
}

// Guard keeps a wrong state from being served.
type Guard struct {
	*Quarantine
	opts   Options
	server Server

	compared atomic.Uint64          // the newest revision at which all members agreed
	doubt    atomic.Pointer[string] // the members differ, and no majority shows which one is right

	received atomic.Pointer[string] // the snapshot with the state of the leader
}

// New returns the Guard of a server, which is in quarantine if its directory is marked.
func New(opts Options, server Server) (*Guard, error) {
	q, err := openQuarantine(opts.Dir, opts.JoinAgain)
	if err != nil {
		return nil, err
	}
	g := &Guard{Quarantine: q, opts: opts, server: server}
	g.withdraw()
	return g, nil
}

// Compared returns the newest revision at which this server, as the leader, found all members to
// agree; and the different states when no majority shows which one is right.
func (g *Guard) Compared() (revision uint64, undecided string) {
	if doubt := g.doubt.Load(); doubt != nil {
		undecided = *doubt
	}
	return g.compared.Load(), undecided
}

// isolate puts this server in quarantine: from now on it serves nothing, and does no leader's work.
func (g *Guard) isolate(reason string) {
	if !g.begin(reason) {
		return
	}
	defer close(g.begun) // the transfer of a right state removes the mark
	g.withdraw()
	if g.path == "" {
		return
	}
	if err := disk.WriteJSON(g.path, disk.QuarantineMark{Since: time.Now().UTC(), Reason: reason}); err != nil {
		g.opts.Logger.Error(
			"the quarantine will not outlive a restart: do not restart this server before it was removed from the cluster",
			"file", g.path, "err", err)
	}
}

// withdraw takes the state away from its readers, and leadership from a leader.
func (g *Guard) withdraw() {
	if err := g.Err(); err != nil {
		g.server.State().Withdraw(err)
		g.server.StepDown(err)
	}
}

// handOverEvery is how often a server in quarantine looks whether it was elected.
const handOverEvery = 100 * time.Millisecond

// Begin puts the server in quarantine for a reason that no state transfer heals.
func (g *Guard) Begin(reason string) {
	if g.begin(reason) {
		close(g.begun)
	}
	g.withdraw()
}

// Keep waits until this server is in quarantine. Then it logs that, gets a right state for the next
// start, and hands leadership over whenever the server has it. It ends with ctx. It does nothing
// when superseded says that the server cannot be healed.
func (g *Guard) Keep(ctx context.Context, superseded func() bool) {
	select {
	case <-g.begun:
	case <-ctx.Done():
		return
	}
	if superseded() {
		return
	}
	g.opts.Logger.Error("this server is in quarantine and serves nothing", "reason", g.Why(), "server",
		g.opts.ServerID, "mark", g.path)
	var healing sync.WaitGroup
	healing.Go(func() { g.heal(ctx) }) // ends with ctx
	defer healing.Wait()
	ticker := time.NewTicker(handOverEvery)
	defer ticker.Stop()
	for {
		if g.server.Leads() {
			if err := g.server.HandOver("it is in quarantine"); err != nil {
				g.opts.Logger.Debug("cannot hand leadership over yet", "err", err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
