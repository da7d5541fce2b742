package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/gctuner"
)

const (
	// Variable in the environment makes this program a member. It has the member's name.
	Variable = "BARQUE_STORE_MEMBER"
	// Service is the name of the member's methods in net/rpc.
	Service = "Member"
	// ExitFatal is the status of a process whose store can never apply another entry.
	ExitFatal = 3

	controlFile = 3 // the first that a process inherits besides the standard ones
)

// ServeIfMember is called first in main, or in TestMain: in a member's process it does the member's
// work and does not return.
func ServeIfMember() {
	if os.Getenv(Variable) == "" {
		return
	}
	conn, err := net.FileConn(os.NewFile(controlFile, "control"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "a member is started by its driver:", err)
		os.Exit(1)
	}
	m := &Member{watchers: make(map[uint64]raftstore.Watcher), log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	server := rpc.NewServer()
	if err := server.RegisterName(Service, m); err != nil {
		panic(err)
	}
	keeping, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { gctuner.Keep(keeping, gctuner.Policy{}) }) // as in a real server
	// until the driver is gone, or has done with this process
	server.ServeConn(conn)
	stop()
	running.Wait()
	os.Exit(0)
}

// Member has the driver's calls. Its exported methods are called by net/rpc, each in a goroutine of
// its own.
type Member struct {
	log    *slog.Logger
	server *raftstore.Server
	clock  atomic.Int64 // how far the store's wall clock is off, in nanoseconds
	armed  armedPoint

	mu       sync.Mutex
	watchers map[uint64]raftstore.Watcher
	nextID   uint64
}

// Open starts the store. It is the first call, and the only one if it fails.
func (m *Member) Open(args *OpenArgs, reply *OpenReply) error {
	start := time.Now()
	err := m.open(args)
	reply.Took, reply.Failed = time.Since(start), FailureOf(err)
	if err == nil {
		reply.ID = m.server.ID()
	}
	return nil
}

func (m *Member) open(args *OpenArgs) error {
	cert, err := tls.X509KeyPair(args.Certificate, args.Key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(args.CA) {
		return errors.New("the CA is not PEM")
	}
	l, err := net.Listen("tcp", args.Address)
	if err != nil {
		return err
	}
	log := m.log.With("member", args.Name)
	mux, err := raftstore.NewMux(raftstore.MuxConfig{
		Listener: l, Certificate: func() *tls.Certificate { return &cert },
		Roots:  func() *x509.CertPool { return roots },
		Logger: log,
	})
	if err != nil {
		return err
	}
	o := args.Options
	m.armed.arm(args.Arm)
	m.server, err = raftstore.Open(raftstore.Config{
		Name: args.Name, Dir: args.Dir, Bootstrap: args.Bootstrap, ClusterID: args.ClusterID, Version: "test",
		Stream: relayed{mux, args.Relay}, Timeouts: o.Timeouts, Limits: o.Limits, QueueLength: o.QueueLength,
		RetryFor: o.RetryFor, SnapshotEvery: o.SnapshotEvery, TrailingLogs: o.TrailingLogs, Logger: log, Now: m.now,
		LogStore: o.LogStore, FaultPoint: m.armed.at,
		OnFatal: func(err error) {
			log.Error("the member ends", "err", err)
			os.Exit(ExitFatal)
		},
	})
	return err
}

func (m *Member) now() time.Time { return time.Now().Add(time.Duration(m.clock.Load())) }

// relayed dials the others through the relay of the link between the two.
type relayed struct {
	*raftstore.Mux
	octet int
}

// Dial implements raftstore.Stream.
func (r relayed) Dial(ctx context.Context, addr, proto string) (net.Conn, error) {
	if r.octet != 0 && addr != r.Addr() {
		addr = ViaRelay(addr, r.octet)
	}
	return r.Mux.Dial(ctx, addr, proto)
}

// ViaRelay returns the address at which the relay of a member listens for connections to addr.
func ViaRelay(addr string, octet int) string {
	to, err := netip.ParseAddrPort(addr)
	if err != nil || !to.Addr().Is4() {
		return addr
	}
	b := to.Addr().As4()
	b[2] = byte(octet)
	return netip.AddrPortFrom(netip.AddrFrom4(b), to.Port()).String()
}

func limited(timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		timeout = time.Minute
	}
	return context.WithTimeout(context.Background(), timeout)
}

// Commit is raftstore.Store.Commit.
func (m *Member) Commit(args *CommitArgs, reply *CommitReply) error {
	ctx, cancel := limited(args.Timeout)
	defer cancel()
	var err error
	reply.Result, err = m.server.Commit(ctx, args.Txn)
	reply.Failed = FailureOf(err)
	return nil
}

// View reads one key or a list.
func (m *Member) View(args *ViewArgs, reply *ViewReply) error {
	ctx, cancel := limited(args.Timeout)
	defer cancel()
	v, err := m.server.View(ctx, args.View)
	if err != nil {
		reply.Failed = FailureOf(err)
		return nil
	}
	reply.Revision = v.Revision()
	if args.One {
		if item, ok := v.Get(args.From); ok {
			reply.Items = append(reply.Items, item)
		}
		return nil
	}
	v.Ascend(args.Prefix, args.From, func(item raftstore.Item) bool {
		reply.Items = append(reply.Items, item)
		return len(reply.Items) != args.Limit
	})
	return nil
}

// Watch opens a watcher.
func (m *Member) Watch(args *WatchArgs, reply *WatchReply) error {
	w, err := m.server.Watch(args.Options)
	if err != nil {
		reply.Failed = FailureOf(err)
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nextID++
	m.watchers[m.nextID], reply.ID = w, m.nextID
	return nil
}

// maxBatches bounds how many batches one answer carries.
const maxBatches = 256

// Next reads from a watcher: the batches that are there, or the first that comes in time.
func (m *Member) Next(args *NextArgs, reply *NextReply) error {
	m.mu.Lock()
	w := m.watchers[args.ID]
	m.mu.Unlock()
	if w == nil {
		reply.Failed = FailureOf(raftstore.ErrClosed)
		return nil
	}
	ctx, cancel := limited(args.Timeout)
	defer cancel()
	for len(reply.Batches) < maxBatches {
		b, err := w.Next(ctx)
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				reply.Failed = FailureOf(err)
			}
			return nil
		}
		reply.Batches = append(reply.Batches, b)
		if len(reply.Batches) == 1 {
			// Batches that are there already come at once; more are not waited for.
			cancel()
			ctx, cancel = limited(time.Millisecond)
			defer cancel()
		}
	}
	return nil
}

// Progress asks a watcher for a progress batch.
func (m *Member) Progress(args *NextArgs, _ *struct{}) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watchers[args.ID]; w != nil {
		w.RequestProgress()
	}
	return nil
}

// Unwatch closes a watcher.
func (m *Member) Unwatch(args *NextArgs, _ *struct{}) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watchers[args.ID]; w != nil {
		w.Close()
		delete(m.watchers, args.ID)
	}
	return nil
}

// Status is how the member sees itself and the group.
func (m *Member) Status(_ *struct{}, reply *StatusReply) error {
	reply.Status, reply.Members = m.server.Status(), m.server.Members()
	return nil
}

// Change makes a change, which has no result.
func (m *Member) Change(args *ChangeArgs, reply *FailureReply) error {
	ctx, cancel := limited(args.Timeout)
	defer cancel()
	c := args.Change
	var err error
	switch c.Kind {
	case Join:
		err = m.server.Join(ctx, c.Addresses)
	case Remove:
		err = m.server.Remove(ctx, c.ID, "a test removed it")
	case Transfer:
		err = m.server.TransferLeadership(ctx, c.ID)
	case Snapshot:
		err = m.server.Snapshot()
	case Compact:
		err = m.server.Compact(ctx, c.Revision)
	default:
		err = fmt.Errorf("there is no change %d", c.Kind)
	}
	reply.Failed = FailureOf(err)
	return nil
}

// Clock sets how far the store's wall clock is off.
func (m *Member) Clock(args *ClockArgs, _ *struct{}) error {
	m.clock.Store(int64(args.Offset))
	return nil
}

// Arm makes the process kill itself at a point of package raftstore/faultpoint.
func (m *Member) Arm(args *ArmArgs, _ *struct{}) error {
	m.armed.arm(*args)
	return nil
}

// Load does work inside this process.
func (m *Member) Load(args *Load, reply *LoadResult) (err error) {
	*reply, err = args.run(context.Background(), m.server)
	return err
}

// Usage collects garbage and returns the usage then.
func (m *Member) Usage(_ *struct{}, reply *Usage) error {
	*reply = collectedUsage()
	return nil
}

// AtRest returns the usage, and disturbs nothing.
func (m *Member) AtRest(_ *struct{}, reply *Usage) error {
	*reply = usage()
	return nil
}

// Close stops the store in order.
func (m *Member) Close(_ *struct{}, reply *FailureReply) error {
	reply.Failed = FailureOf(m.server.Close())
	return nil
}
