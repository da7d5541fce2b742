package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/raftlog"
	"github.com/barque/barque/raftstore/screen"
	"github.com/barque/barque/raftstore/steward"
)

// Node is one server of the group.
type Node struct {
	cfg         Config
	id          identity
	lock        dirLock
	state       *mvcc.Store
	fsm         *fsm.FSM
	machine     *measured // the same, as Raft has it
	committed   committed
	storage     *storage
	stream      *raftStream
	transport   *named
	book        *book
	raft        *raft.Raft
	screen      *screen.Screen // what others tell Raft goes through it, but for heartbeats
	leadership  *leadership
	silence     *silence
	proposer    *proposer
	reads       *reads
	census      *census
	peers       *clients
	followed    followed
	leaders     leaderHistory
	foreign     foreigners // met where one of this cluster was expected
	knockers    foreigners // that came here, by their host
	opened      time.Time
	ear         *ear
	vacancy     vacancy
	strangers   *clients // of whom only the address is known
	refusal     string   // why this server, which was dropped, is not let in again, as was told; keepContact's
	stats       *metrics
	quarantine  *quarantine
	compared    compared
	space       atomic.Int32 // a level
	notify      chan bool
	hung        chan struct{} // holds a token when the disk of this server, which led, has begun to hang
	listener    net.Listener
	seeds       net.Listener
	seeding     sync.Mutex // one server in quarantine is served at a time
	changing    gate       // one change of members at a time
	nudged      chan struct{}
	health      atomic.Pointer[[]steward.Health] // while this server leads
	fatal       atomic.Pointer[error]            // why the state machine cannot go on
	heir        atomic.Pointer[string]           // to whom this server, which leads, is handing over
	successions chan Succession                  // holds one that this server was told of
	superseded  atomic.Pointer[Succession]
	removal     sync.Once
	removed     atomic.Pointer[Removal]
	out         chan struct{} // closed when this server has learned that it was removed

	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	running sync.WaitGroup // goroutines that end with ctx
	links   sync.WaitGroup // goroutines of the links to other servers
	offices sync.WaitGroup // goroutines that end with a tenure
	// questions to Raft that may outlast who asks.
	questions questions

	stopped   chan struct{} // closed when Raft has stopped
	following sync.WaitGroup
	transfers transfers
	closing   sync.Once
	closed    error
}

// raftPool is how many idle connections Raft keeps to each server.
const raftPool = 3

// logCacheBytes is twice what may be under way to a quorum, so that followers that keep up are
// served from memory.
const logCacheBytes = 2 * maxInFlight * maxEntryBytes

// Open starts a server with what it finds in its directory. It does not wait for a leader.
func Open(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(&cfg)
	if err != nil {
		return nil, err
	}
	n, err := open(cfg)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	n.lock = lock
	return n, nil
}

// open is Open for one who holds the lock of the directory.
func open(cfg Config) (*Node, error) {
	if err := checkNotRecovering(&cfg); err != nil {
		return nil, err
	}
	if err := checkNotRemoved(&cfg); err != nil {
		return nil, err
	}
	id, err := openIdentity(&cfg)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkNotSuperseded(&cfg, id.ClusterID), id.checkLog(&cfg)); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, id: id, opened: time.Now(), successions: make(chan Succession, 1), nudged: make(chan struct{}, 1), out: make(chan struct{}), notify: make(chan bool, 1), changing: make(gate, 1), hung: make(chan struct{}, 1), stopped: make(chan struct{}), state: mvcc.New(cfg.History)}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.fsm = fsm.New(n.state, n.halt)
	n.leadership = newLeadership(cfg.Logger)
	n.leadership.told = func(term uint64, why string) {
		n.leaders.lost(term, id.ServerID, cfg.Name+" gave it up: "+why)
	}
	if err := adoptSeed(&cfg); err != nil {
		return nil, err
	}
	if n.quarantine, err = openQuarantine(&cfg); err != nil {
		return nil, err
	}
	removeOldRecords(&cfg)
	n.withdraw()
	n.book = newBook()
	n.silence = newSilence(cfg.Timeouts.Heartbeat, cfg.Logger)
	n.ear = newEar(cfg.Timeouts)
	n.census = &census{members: n.dialed, termOf: n.termOf, running: &n.running, waiting: make(map[string][]*ballot)}
	n.peers, n.strangers = newClients(n), newClients(n)
	n.stats = newMetrics(cfg.Registerer)
	if n.storage, err = openStorage(&cfg, n.fsm, n.stats, n.halt); err != nil {
		return nil, err
	}
	n.fsm.OmitHistory(n.storage.reserve.exhausted)
	if err := n.id.noteLog(&cfg); err != nil {
		return nil, errors.Join(err, n.storage.log.Close())
	}
	if err := n.startRaft(); err != nil {
		return nil, errors.Join(err, n.storage.log.Close())
	}
	n.start()
	if err := n.stats.show(n); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) startRaft() error {
	cfg := n.cfg.raft(n.id.ServerID, n.notify)
	n.stream = newRaftStream(n.cfg.Stream, n.id)
	n.stream.succeeded, n.stream.heed = n.succeeded, n.heed
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.stream, MaxPool: raftPool, Timeout: n.cfg.Timeouts.Call,
		Logger: raftlog.New(n.cfg.Logger), MsgpackUseNewTimeFormat: true,
	})
	n.transport = &named{transport, n.book}
	if err := n.bootstrap(cfg); err != nil {
		return errors.Join(err, n.transport.Close())
	}
	var err error
	heard := &attentive{n.transport, n.silence, n.quarantine}
	n.machine = &measured{
		BatchingFSM: &guarded{n.fsm, n.quarantine}, stats: n.stats, logger: n.cfg.Logger, state: n.state,
		members: &n.committed, snapshots: n.storage.snapshots,
	}
	if err := n.committed.load(n.storage.snapshots); err != nil {
		return errors.Join(fmt.Errorf("list the snapshots in %s: %w", n.cfg.Dir, err), n.transport.Close())
	}
	if n.machine.known, err = n.storage.log.LastIndex(); err != nil {
		return errors.Join(fmt.Errorf("read the log in %s: %w", n.cfg.Dir, err), n.transport.Close())
	}
	log := screen.NewLog(logstore.NewCache(logstore.NewTail(n.storage.log, n.halt), logCacheBytes), screen.LogOptions{
		Snapshots: n.storage.snapshots, Sever: n.storage.sever, Fatal: n.halt,
	})
	n.screen = screen.New(log)
	n.raft, err = raft.NewRaft(cfg, n.machine, log, n.storage.log, n.storage.snapshots, &screened{&muzzle{heard, n.storage.log.Disk()}, n.screen})
	if err != nil {
		return errors.Join(fmt.Errorf("start raft: %w", err), n.transport.Close())
	}
	log.Attach(n.raft)
	n.following.Go(func() { n.screen.Run(n.transport.Consumer(), n.stopped) })
	return nil
}

// bootstrap makes this server the only member of a new group, if it is told to and is new.
func (n *Node) bootstrap(cfg *raft.Config) error {
	has, err := raft.HasExistingState(n.storage.log, n.storage.log, n.storage.snapshots)
	if err != nil {
		return fmt.Errorf("read the log in %s: %w", n.cfg.Dir, err)
	}
	if !n.cfg.Bootstrap {
		return nil
	}
	alone := raft.Configuration{Servers: []raft.Server{{
		ID: raft.ServerID(n.id.ServerID), Address: raft.ServerAddress(n.cfg.Stream.Addr()), Suffrage: raft.Voter,
	}}}
	if has {
		return n.finishBootstrap(alone)
	}
	if err := raft.BootstrapCluster(cfg, n.storage.log, n.storage.log, n.storage.snapshots, n.transport, alone); err != nil {
		return fmt.Errorf("make a new cluster: %w", err)
	}
	return nil
}

// finishBootstrap writes the first entry of the log, should a crash have hit between Raft's two
// writes of a bootstrap: the term, and this entry. Raft counts the term as existing state, and
// without members nobody would ever be elected.
func (n *Node) finishBootstrap(alone raft.Configuration) error {
	last, err := n.storage.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log in %s: %w", n.cfg.Dir, err)
	}
	snapshots, err := n.storage.snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots in %s: %w", n.cfg.Dir, err)
	}
	if last > 0 || len(snapshots) > 0 {
		return nil
	}
	entry := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(alone)}
	if err := n.storage.log.StoreLog(entry); err != nil {
		return fmt.Errorf("finish making a new cluster: %w", err)
	}
	return nil
}

// start sets the goroutines going. They end with n.ctx or with the listener, and followLeadership
// with Raft; Close ends all three and waits.
func (n *Node) start() {
	n.tellOfElections()
	apply := func(data []byte) raft.ApplyFuture { return n.raft.Apply(data, 0) }
	n.proposer = newProposer(apply, n.cfg.Now, n.cfg.QueueLength, n.ctx.Done(), n.storage.log.Disk(), n.stats)
	n.proposer.stateBytes = n.cfg.StateBytes
	n.reads = newReads(n.cfg.Timeouts.Call, n.stats, n.readRound)
	n.listener, n.seeds = n.cfg.Stream.Listener(ProtoStore), n.cfg.Stream.Listener(ProtoSeed)
	n.following.Go(n.followLeadership)
	n.running.Go(n.proposer.run)
	n.running.Go(func() { n.reads.run(n.ctx) })
	n.running.Go(func() { n.acceptPeers(n.listener) })
	n.running.Go(func() { n.acceptSeeds(n.seeds) })
	n.running.Go(n.electAlone)
	n.running.Go(n.keepContact)
	n.running.Go(n.heedLeaders)
	n.running.Go(n.fillVacancy)
	n.running.Go(n.tellOfNoLeader)
	n.running.Go(n.watchSpace)
	n.running.Go(n.keepQuarantine)
	n.running.Go(n.awaitSuccessor)
	n.running.Go(n.keepRoom)
	n.running.Go(n.keepLogSmall)
	n.cfg.Logger.Info("store is open", "server", n.id.ServerID, "cluster", n.id.ClusterID,
		"revision", n.state.Revision(), "lastIndex", n.raft.LastIndex())
}

// electAlone spares the only voter of a group the wait for a leader that cannot exist.
func (n *Node) electAlone() {
	servers := n.raft.GetConfiguration().Configuration().Servers
	if len(servers) != 1 || string(servers[0].ID) != n.id.ServerID || servers[0].Suffrage != raft.Voter {
		return
	}
	term := n.raft.CurrentTerm()
	if err := n.stand(n.ctx, func() error { return n.unmoved("", term) }); err != nil {
		n.cfg.Logger.Debug("the election is left to Raft", "err", err)
	}
}

func (n *Node) rpcHeader() raft.RPCHeader {
	return raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.id.ServerID),
		Addr: n.transport.EncodePeer(raft.ServerID(n.id.ServerID), raft.ServerAddress(n.cfg.Stream.Addr())),
	}
}

// halt is called by the state machine when it cannot go on.
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
	return n.leadership.await(ctx)
}

// Close hands leadership over, if this server has it and another can take it, and stops.
func (n *Node) Close() error {
	n.closing.Do(func() { n.closed = n.close() })
	return n.closed
}

// close stops in an order that leaves no caller of Raft without an answer: a Raft that stops
// forgets the entries that it has committed and not applied. So first everything that asks Raft
// comes to its end, and then Raft does.
func (n *Node) close() error {
	switch err := n.HandOver(); {
	case errors.Is(err, errNoHeir):
		n.cfg.Logger.Info("nobody leads after this server: too few others answer")
	case err != nil:
		n.cfg.Logger.Warn("could not hand leadership over before stopping", "err", err)
	}
	n.cancel(kv.ErrClosed)
	n.leadership.close()
	n.listener.Close()
	n.seeds.Close()
	n.peers.close()
	n.strangers.close()
	n.running.Wait()
	n.links.Wait()
	n.offices.Wait()
	n.questions.close()
	n.stream.cut()
	err := n.raft.Shutdown().Error() // closes the transport, too
	close(n.stopped)
	n.following.Wait()
	n.stats.unregister()
	n.leaveRoom()
	return errors.Join(err, n.storage.log.Close(), n.lock.release())
}

// Snapshot writes a snapshot of the state to disk now.
func (n *Node) Snapshot() error {
	if err := n.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	return nil
}
