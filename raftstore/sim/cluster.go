package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// pointSnapshot is in the middle of a snapshot, beside the points of package faultpoint.
const pointSnapshot = "snapshot"

// points are where a server may be made to crash.
var points = []string{
	faultpoint.LogBeforeSync, faultpoint.LogAfterSync, faultpoint.LogBeforeTruncate, faultpoint.LogAfterTruncate,
	faultpoint.TermBeforeSync, faultpoint.TermAfterSync, faultpoint.VoteBeforeSync, faultpoint.VoteAfterSync,
	pointSnapshot,
}

// cluster is the subject of a run.
type cluster struct {
	opts    Options
	record  *check.Record
	net     *memnet.Network
	servers []*server
	dying   sync.WaitGroup // starts, stops and crashes beside the storm
	values  counter
	faults  int // how many the storm has made

	mu       sync.Mutex
	problems []history.Violation
}

// server is a machine: its disk and its clock stay when its process crashes.
type server struct {
	c     *cluster
	index int
	clock *clock

	changing chan struct{} // holds a token while the process is started or stopped

	mu         sync.Mutex
	rnd        *rand.Rand
	disk       *disk
	generation int // counts the times that it joined with an empty disk
	life       int // counts its starts
	process    *process
	armed      string // the point at which it crashes next
}

// process is a server while it runs.
type process struct {
	*raftstore.Server
	api     api // for clients
	life    int
	host    *memnet.Host
	crashed bool            // guarded by the server's lock: its later answers are not recorded
	ctx     context.Context // ends with it
	end     context.CancelFunc
	running sync.WaitGroup
}

// api is the clients' interface of a server.
type api interface {
	View(context.Context, raftstore.ViewOptions) (raftstore.View, error)
	Commit(context.Context, raftstore.Txn) (raftstore.Result, error)
	Watch(raftstore.WatchOptions) (raftstore.Watcher, error)
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func newCluster(opts Options, record *check.Record) *cluster {
	c := &cluster{opts: opts, record: record, net: new(memnet.Network)}
	rnd := rand.New(rand.NewPCG(opts.Seed, 1))
	for i := range opts.Servers {
		offset := time.Duration(rnd.Int64N(int64(2*maxOffset))) - maxOffset
		c.servers = append(c.servers, &server{
			c: c, index: i, disk: newDisk(opts.Seed, uint64(100+i)),
			clock: newClock(offset, (2*rnd.Float64()-1)*maxDrift),
			rnd:   rand.New(rand.NewPCG(opts.Seed, uint64(200+i))), changing: make(chan struct{}, 1),
		})
	}
	return c
}

func addr(i int) string { return fmt.Sprintf("s%d:6444", i) }

func (c *cluster) note(format string, args ...any) { c.record.Note(fmt.Sprintf(format, args...)) }

// problem notes a fault of a server, beside the clients' answers.
func (c *cluster) problem(promise, format string, args ...any) {
	c.note("PROBLEM "+format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = append(c.problems, history.Violation{Promise: promise, What: fmt.Sprintf(format, args...)})
}

// live returns the process of a server; nil while it has none.
func (s *server) live() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// leader returns the server that leads, as far as one sees that looks at all; a random one if none
// does.
func (c *cluster) leader(rnd *rand.Rand) *server {
	found, term := c.servers[rnd.IntN(len(c.servers))], uint64(0)
	for _, s := range c.servers {
		if p := s.live(); p != nil {
			if status := p.Status(); status.Role == "leader" && status.Term > term {
				found, term = s, status.Term
			}
		}
	}
	return found
}

// id is the server's ID, which it keeps until it gets a new disk.
func (s *server) id() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("s%d.%d", s.index, s.generation)
}

// config returns the configuration of the next process.
func (s *server) config(host *memnet.Host) raftstore.Config {
	id := s.id()
	s.mu.Lock()
	defer s.mu.Unlock()
	scale := func(d time.Duration) time.Duration { return d }
	if !s.c.opts.Calm {
		f := 1 + (2*s.rnd.Float64()-1)*maxTimer
		scale = func(d time.Duration) time.Duration { return time.Duration(float64(d) * f) }
	}
	mounted := s.disk.open(func() { s.crash(false, "it cannot keep its term") })
	cfg := raftstore.Config{
		Name: fmt.Sprintf("s%d", s.index), InMemory: true, ServerID: id, ClusterID: "sim",
		Bootstrap: s.index == 0 && s.generation == 0, Stream: host,
		Timeouts: raftstore.Timeouts{
			Heartbeat: scale(100 * time.Millisecond), Silence: scale(50 * time.Millisecond),
			Election: scale(100 * time.Millisecond), Lease: scale(80 * time.Millisecond),
			Call: 400 * time.Millisecond, DiskWrite: 250 * time.Millisecond, PromoteAfter: 50 * time.Millisecond,
		},
		RetryFor: time.Second, SnapshotEvery: 200, TrailingLogs: uint64(5 + s.rnd.IntN(40)),
		Now: s.clock.now, Logger: slog.New(slog.DiscardHandler),
		OnFatal:       s.fatal,
		WrapLog:       func(raftstore.LogStore) raftstore.LogStore { return mounted },
		WrapSnapshots: func(raft.SnapshotStore) raft.SnapshotStore { return &snapshots{mounted, s.reach} },
		FaultPoint:    s.reach,
	}
	if s.c.opts.edit != nil {
		s.c.opts.edit(s, mounted, &cfg)
	}
	return cfg
}

// reach crashes the server at the armed point.
func (s *server) reach(point string) {
	s.mu.Lock()
	hit := s.armed == point
	if hit {
		s.armed = ""
	}
	s.mu.Unlock()
	if hit {
		s.crash(false, "at "+point)
	}
}

// start starts a server that is down, with the state of its disk.
func (s *server) start() {
	s.changing <- struct{}{}
	defer func() { <-s.changing }()
	s.open()
}

// launch starts the server, and does not wait: its disk may hang.
func (s *server) launch() { s.c.dying.Go(s.start) } // ends when the disk allows

func (s *server) open() {
	if s.live() != nil {
		return
	}
	host := s.c.net.Host(addr(s.index))
	store, err := raftstore.Open(s.config(host))
	if err != nil {
		s.c.problem("a server starts again", "server %d: %v", s.index, err)
		return
	}
	p := &process{Server: store, api: store, host: host}
	if s.c.opts.spoil != nil {
		p.api = s.c.opts.spoil(store)
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	s.mu.Lock()
	s.life++
	p.life = s.life
	s.process = p
	s.mu.Unlock()
	s.c.note("server %d starts as %s", s.index, store.ID())
	p.running.Go(func() { s.tap(p) })           // both end with the process
	p.running.Go(func() { s.writeAsLeader(p) }) // which waits for them
}

// crash ends the process of a server at once. power: no peer hears of it.
func (s *server) crash(power bool, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.process
	if p == nil {
		return
	}
	s.process, s.armed, p.crashed = nil, "", true
	s.disk.crash()
	if power {
		p.host.Vanish()
	} else {
		p.host.Close()
	}
	s.c.note("server %d crashes: %s", s.index, why)
	s.c.dying.Go(func() { p.close() }) // run waits for it
}

// fatal ends a process that cannot go on. It may end for its disk; the fault that damaged
// the disk starts it again.
func (s *server) fatal(err error) {
	if errors.Is(err, errIO) || errors.Is(err, errFull) {
		s.crash(false, err.Error())
		return
	}
	s.c.problem("every server goes on", "server %d halts: %v", s.index, err)
}

// heard calls a function with a process's answer, unless it had crashed before it could give it. A
// process that has crashed goes on with a copy of its disk, and if it has the only vote it even
// commits its writes there.
func (s *server) heard(p *process, take func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.crashed {
		take()
	}
	return !p.crashed
}

// stop stops a server in order.
func (s *server) stop() {
	s.changing <- struct{}{}
	defer func() { <-s.changing }()
	s.halt()
}

func (s *server) halt() {
	s.mu.Lock()
	p := s.process
	s.process, s.armed = nil, ""
	s.mu.Unlock()
	if p == nil {
		return
	}
	closed := make(chan struct{})
	s.c.dying.Go(func() { // ends when the process has stopped, at the latest after it was killed
		defer close(closed)
		if err := p.close(); err != nil {
			s.c.note("server %d stops: %v", s.index, err)
		}
	})
	select {
	case <-closed:
	case <-time.After(stopTime): // its disk hangs, most likely
		s.kill(p)
		<-closed
	}
	p.host.Close()
}

// stopTime is how long a server may take to stop in order until it is killed.
const stopTime = 3 * time.Second

// kill crashes a process that is to stop.
func (s *server) kill(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.crashed = true
	s.disk.crash()
	p.host.Close()
	s.c.note("server %d does not stop and is killed", s.index)
}

func (p *process) close() error {
	err := p.Close()
	p.end()
	p.running.Wait()
	return err
}

// renew starts the server, which is no member any more, with a new disk and a new identity.
func (s *server) renew() {
	s.changing <- struct{}{}
	defer func() { <-s.changing }()
	s.halt()
	s.mu.Lock()
	s.generation++
	s.disk = newDisk(s.c.opts.Seed, uint64(1000*s.generation+s.index))
	s.mu.Unlock()
	s.open()
}

// tap shows every revision as it comes about on a server.
func (s *server) tap(p *process) {
	for {
		after := p.Compacted()
		w, err := p.Watch(raftstore.WatchOptions{After: after})
		if errors.Is(err, raftstore.ErrCompacted) {
			continue
		}
		if err != nil {
			return
		}
		tap := s.c.record.Watch(&check.Watch{Server: s.index, Life: p.life, After: after, Tap: true})
		for err == nil {
			var b raftstore.Batch
			if b, err = w.Next(context.Background()); err == nil {
				s.heard(p, func() { s.c.record.Deliver(tap, b) })
			}
		}
		w.Close()
		if !errors.Is(err, raftstore.ErrCompacted) {
			return
		}
	}
}
