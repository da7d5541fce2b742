package leader

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/election"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/raftfix"
	"github.com/barque/barque/raftstore/status"
)

// Options of a Leadership. All are needed.
type Options struct {
	ID       string
	Dir      string // for people
	Timeouts group.Timeouts
	Stats    *status.Metrics
	Logger   *slog.Logger
}

// Raft is the Leadership's interface of Raft. Ask waits for the answer to a request no longer than
// ctx, whatever Raft does.
type Raft interface {
	State() raft.RaftState
	CurrentTerm() uint64
	LastIndex() uint64
	LeadershipTransfer() raft.Future
	LeadershipTransferToServer(id raft.ServerID, address raft.ServerAddress) raft.Future
	Ask(ctx context.Context, question func() raft.Future) error
}

// Disk is where the log is written. It is a *logstore.Watchdog.
type Disk interface {
	// Check returns an error while a write hangs, and Changed holds a token when that has changed.
	Check() error
	Changed() <-chan struct{}
}

// Elections learns of the begin and the end of a term, and knows the silent members. It is an
// *election.Elector.
type Elections interface {
	Leads(term uint64)
	Lost(term uint64, why string)
	// Disk is called when the disk of this leading server begins to hang.
	Disk()
	Silent() ([]election.SilentMember, <-chan struct{})
}

// Survey asks a member for its status. It is a *status.Board.
type Survey interface {
	Ask(ctx context.Context, m group.Member) (*status.Status, error)
}

// Server is the Leadership's interface of the server.
type Server interface {
	Members() []group.Member
	State() *mvcc.Store
	// Observe returns the members, with their own reports.
	Observe(ctx context.Context) []autopilot.Server
	// MayServe returns an error while this server may not do the work of a leader: it is elected
	// then only to hand leadership over.
	MayServe() error
	// NoOp proposes an empty entry, and FirstEntry waits for one. It returns the term in which that
	// was committed.
	NoOp() raft.ApplyFuture
	FirstEntry() (term uint64, err error)
}

// Work is a server's work while it leads. Each function ends with its context.
type Work struct {
	// Elected begins when this server is elected.
	Elected func(ctx context.Context)
	// Leading begin when it leads: when everything is applied that leaders before have
	// acknowledged.
	Leading []func(ctx context.Context, term uint64)
}

// Parts are a Leadership's dependencies, once Raft runs.
type Parts struct {
	Raft      Raft
	Disk      Disk
	Reserve   *disk.Reserve
	Elections Elections
	Survey    Survey
	Work      Work
}

// Leadership knows whether this server leads, and runs its work while it does.
type Leadership struct {
	opts   Options
	server Server
	parts  Parts
	notify chan bool // Raft's word whether this server is the leader

	mu      sync.Mutex
	current *term         // nil: this server does not lead
	changed chan struct{} // closed when current is another one, or leads
	closed  bool
	running sync.WaitGroup // goroutines that end with a term

	transferee atomic.Pointer[string] // the server to which this one is handing over, for people
	transfers  raftfix.Transfers
}

// New returns a Leadership. Before Attach, Depose, Term, Await, Close and Notify alone are to be
// called.
func New(opts Options, server Server) *Leadership {
	return &Leadership{opts: opts, server: server, notify: make(chan bool, 1), changed: make(chan struct{})}
}

// Notify is Raft's channel for this server's leadership: see raft.Config.
func (l *Leadership) Notify() chan<- bool { return l.notify }

// Attach is called once, when Raft runs.
func (l *Leadership) Attach(p Parts) { l.parts = p }

// Wait waits for the work of a leader to end. It is for after Close.
func (l *Leadership) Wait() { l.running.Wait() }
