package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/scheddelay"
	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/election"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/integrity"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/lateness"
	"github.com/barque/barque/raftstore/leader"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/raftfix"
	"github.com/barque/barque/raftstore/readindex"
	"github.com/barque/barque/raftstore/status"
	"github.com/barque/barque/raftstore/succession"
)

// Node is one server of the group.
type Node struct {
	cfg        Config
	id         disk.Identity
	lock       disk.Lock
	state      *mvcc.Store
	fsm        *fsm.FSM
	machine    *status.Machine // the same, as Raft's interface
	storage    *disk.Storage
	raft       *consensus
	leader     *leader.Leadership
	election   *election.Elector
	lateness   *lateness.Lateness // of the servers, by which time-outs are extended
	meter      scheddelay.Meter
	autopilot  *autopilot.Manager
	proposer   *proposer
	reads      *readindex.Reader
	peers      *peer.Peers
	stats      *status.Metrics
	guard      *integrity.Guard // against a wrong state
	space      *status.Space
	board      *status.Board         // the status of all members
	fatal      atomic.Pointer[error] // why the state machine has stopped
	succession *succession.Watch     // of a cluster that replaces this one

	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	running sync.WaitGroup // goroutines that end with ctx
	closing func() error   // closes it, once
}

// Open starts a server with the data in its directory. It does not wait for a leader.
func Open(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var lock disk.Lock
	if !cfg.InMemory {
		if lock, err = disk.LockDir(cfg.Dir); err != nil {
			return nil, err
		}
	}
	n, err := open(cfg)
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	n.lock = lock
	return n, nil
}

// open is Open for a caller that holds the lock of the directory.
func open(cfg Config) (*Node, error) {
	opts := cfg.disk()
	if err := disk.CheckNotRecovering(&opts); err != nil {
		return nil, err
	}
	if err := disk.CheckNotRemoved(&opts, cfg.Name); err != nil {
		return nil, err
	}
	id, err := disk.OpenIdentity(&opts,
		disk.Owner{Name: cfg.Name, ServerID: cfg.ServerID, ClusterID: cfg.ClusterID, Bootstrap: cfg.Bootstrap})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(disk.CheckNotSuperseded(&opts, id.ClusterID), id.CheckLog(&opts)); err != nil {
		return nil, err
	}
	if cfg.OnIdentity != nil {
		if err := cfg.OnIdentity(id.ServerID); err != nil {
			return nil, err
		}
	}
	n := &Node{cfg: cfg, id: id, state: mvcc.New(cfg.History)}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.fsm = fsm.New(n.state, n.halt)
	n.closing = sync.OnceValue(n.close)
	n.stats = status.NewMetrics(cfg.Registerer)
	own := cfg.SchedulingDelay
	if own == nil {
		own = n.meter.Delay
	}
	n.lateness = lateness.New(own, cfg.Timeouts)
	n.leader = leader.New(
		leader.Options{ID: id.ServerID, Dir: cfg.Dir, Timeouts: cfg.Timeouts, Stats: n.stats, Logger: cfg.Logger},
		wiring{n})
	n.succession = succession.New(succession.Options{
		ID: id.ServerID, Dir: cfg.Dir, InMemory: cfg.InMemory, JoinAgain: cfg.JoinAgain, OnSuperseded: cfg.OnSuperseded,
		Logger: cfg.Logger,
	}, wiring{n})
	if err := disk.EndOldTransfer(&opts); err != nil {
		return nil, err
	}
	n.guard, err = integrity.New(integrity.Options{
		ServerID: id.ServerID, Dir: cfg.dir(), Keep: cfg.KeepQuarantine, OnNewState: cfg.OnNewState,
		JoinAgain:   cfg.JoinAgain,
		CallTimeout: cfg.Timeouts.Call, History: cfg.History, FaultPoint: cfg.FaultPoint, Logger: cfg.Logger,
	}, wiring{n})
	if err != nil {
		return nil, err
	}
	if !cfg.InMemory {
		disk.RemoveOldRecords(cfg.Dir)
	}
	n.peers = peer.New(peer.Options{
		Self: peer.Identity{ClusterID: id.ClusterID, ServerID: id.ServerID}, Name: cfg.Name, Stream: cfg.Stream,
		CallTimeout: cfg.Timeouts.Call, Known: cfg.Peers, JoinAgain: cfg.JoinAgain, Logger: cfg.Logger,
	}, wiring{n})
	n.election = election.New(
		election.Options{ID: raft.ServerID(id.ServerID), Name: cfg.Name, Timeouts: cfg.Timeouts, Stats: n.stats,
			Logger: cfg.Logger}, n.peers, wiring{n})
	n.space = status.NewSpace(n.state, n.stateLimit, cfg.Logger)
	n.board = status.NewBoard(wiring{n}, cfg.Report)
	n.autopilot = autopilot.New(autopilot.Options{
		ID: id.ServerID, Addr: cfg.Stream.Addr, Dir: cfg.dir(), Timeouts: cfg.Timeouts, CleanAfter: cfg.CleanAfter,
		MinVoters: cfg.MinVoters,
		Now:       cfg.Now, OnRemoved: cfg.OnRemoved, OnChange: cfg.OnChange, Logger: cfg.Logger,
	}, n.peers, n.board, wiring{n})
	opts.Observe, opts.Fatal = n.stats.ObserveLog, n.halt
	opts.Extension = func() time.Duration { return n.lateness.Extension(id.ServerID) }
	if n.storage, err = disk.Open(&opts, n.fsm); err != nil {
		return nil, err
	}
	n.fsm.OmitHistory(n.storage.Reserve.Full.Load)
	if err := n.id.NoteLog(&opts); err != nil {
		return nil, errors.Join(err, n.storage.Log.Close())
	}
	if n.raft, err = n.startRaft(); err != nil {
		return nil, errors.Join(err, n.storage.Log.Close())
	}
	n.start()
	if err := n.stats.Show(wiring{n}, n.storage.Start.SnapshotTaken); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// start sets the goroutines going. They end with n.ctx, and leader.Follow with Raft. Close ends
// both and waits.
func (n *Node) start() {
	n.election.Attach(n.raft)
	n.autopilot.Attach(n.raft)
	n.leader.Attach(leader.Parts{
		Raft: n.raft, Disk: n.storage.Log.Disk(), Reserve: n.storage.Reserve, Elections: n.election, Survey: n.board,
		Work: n.leaderWork(),
	})
	apply := func(data []byte) raft.ApplyFuture { return n.raft.Apply(data, 0) }
	n.proposer = newProposer(apply, n.cfg.Now, n.cfg.QueueLength, n.ctx.Done(), n.storage.Log.Disk(), n.stats)
	n.proposer.stateBytes = n.cfg.StateBytes
	n.reads = readindex.New(readindex.Options{ID: n.id.ServerID, CallTimeout: n.cfg.Timeouts.Call, Stats: n.stats},
		n.fsm, n.raft, n.peers, wiring{n}, n.ctx.Done())
	calls := n.cfg.Stream.Listener(peer.ProtoStore)
	n.raft.running.Go(func() { n.leader.Follow(n.ctx, n.raft.stopped) })
	n.running.Go(n.proposer.run)
	n.running.Go(func() { n.reads.Run(n.ctx) })
	n.running.Go(func() { n.peers.Serve(n.ctx, calls, n.handler()) })
	n.running.Go(func() { n.election.ElectAlone(n.ctx) })
	n.running.Go(func() { n.peers.KeepContact(n.ctx) })
	n.running.Go(func() { n.election.Follow(n.ctx) })
	n.running.Go(func() { n.election.Detect(n.ctx) })
	if n.cfg.SchedulingDelay == nil {
		n.running.Go(func() { n.meter.Run(n.ctx) })
	}
	n.running.Go(func() { n.board.TellOfNoLeader(n.ctx, n.cfg.Logger) })
	n.running.Go(func() { n.space.Watch(n.ctx) })
	n.running.Go(func() { n.guard.Keep(n.ctx, func() bool { return n.succession.Superseded() != nil }) })
	n.running.Go(func() { n.succession.Run(n.ctx) })
	n.running.Go(func() { n.storage.KeepRoom(n.ctx, n.raft) })
	n.running.Go(func() { n.storage.KeepLogSmall(n.ctx) })
	n.cfg.Logger.Info("store is open", "server", n.id.ServerID, "cluster", n.id.ClusterID,
		"revision", n.state.Revision(), "lastIndex", n.raft.LastIndex())
}

// leaderWork is this server's work while it leads.
func (n *Node) leaderWork() leader.Work {
	broadcast := &raftfix.CommitBroadcast{
		Raft: n.raft.Raft, Transport: n.raft.network, Header: n.raft.header, Logger: n.cfg.Logger,
		AwaitApplied: n.fsm.Waiter().Wait,
		Applied: func() (index, term uint64) {
			newest := n.fsm.Applied()
			return newest.Index, newest.Term
		},
	}
	return leader.Work{
		Elected: n.election.WatchFollowers,
		Leading: []func(context.Context, uint64){
			broadcast.Run,
			func(ctx context.Context, _ uint64) { n.guard.CompareWhileLeading(ctx) },
			n.autopilot.Manage,
		},
	}
}

// halt is called by the state machine when it cannot continue.
func (n *Node) halt(err error) {
	n.fatal.Store(&err)
	n.cfg.Logger.Error("the store cannot go on", "err", err)
	if n.cfg.OnFatal != nil {
		n.cfg.OnFatal(err)
	}
}

// State returns the state that this server has.
func (n *Node) State() *mvcc.Store { return n.state }

// ID returns the server's ID, which it keeps for ever.
func (n *Node) ID() string { return n.id.ServerID }

// ClusterID returns the ID of the cluster.
func (n *Node) ClusterID() string { return n.id.ClusterID }

// AwaitLeadership waits until this server leads and has applied everything that came before.
func (n *Node) AwaitLeadership(ctx context.Context) (context.Context, uint64, error) {
	return n.leader.Await(ctx)
}

// Close hands leadership over, if this server has it and another can take it, and stops.
func (n *Node) Close() error { return n.closing() }

// HandOver makes another voter the leader if this server leads and there is one. It returns when
// this server no longer leads. It returns an error if it still leads after three times
// Timeouts.Election, as with a hanging disk.
func (n *Node) HandOver() error { return n.leader.Leave(n.ctx) }

// HandOverTo makes a voter the leader that may lead, by its ID, if this server leads.
func (n *Node) HandOverTo(ctx context.Context, why string, may func(id string) bool) error {
	if n.leader.Term() == 0 {
		return nil
	}
	return n.leader.HandOverTo(ctx, why, may)
}

// close stops in an order in which each caller of Raft gets an answer: first all callers end, and
// then Raft.
func (n *Node) close() error {
	switch err := n.HandOver(); {
	case errors.Is(err, leader.ErrNoTransferee):
		n.cfg.Logger.Info("no server leads after this one: too few others answer")
	case err != nil:
		n.cfg.Logger.Warn("could not hand leadership over before stopping", "err", err)
	}
	n.cancel(kv.ErrClosed)
	n.leader.Close()
	n.peers.Close()
	n.running.Wait()
	n.peers.Wait()
	n.leader.Wait()
	err := n.raft.stop()
	n.stats.Unregister()
	n.storage.LeaveRoom()
	return errors.Join(err, n.storage.Log.Close(), n.lock.Release())
}

// Snapshot writes a snapshot of the state to disk now.
func (n *Node) Snapshot() error {
	if err := n.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	return nil
}

// Purge removes from this server's disk everything that the state after the floor, a revision, does
// not have. It waits until the history up to that is dropped.
func (n *Node) Purge(ctx context.Context, floor uint64) error {
	if err := n.state.WaitCompacted(ctx, floor); err != nil {
		return err
	}
	if err := n.Snapshot(); err != nil {
		return err
	}
	return n.storage.Purge(ctx, n.raft.log, n.raft.AppliedIndex())
}
