package node

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/raftfix"
	"github.com/barque/barque/raftstore/raftlog"
	"github.com/barque/barque/raftstore/status"
)

// raftPool is how many idle connections Raft keeps to each server.
const raftPool = 3

// logCacheBytes is twice the size of entries under way to a quorum, so that followers that keep up
// are served from memory.
const logCacheBytes = 2 * maxInFlight * maxEntryBytes

// consensus is Raft as this server runs it, and all that ends with it.
type consensus struct {
	*raft.Raft
	raftfix.Questions // to Raft, which may outlast their callers
	id                raft.ServerID
	addr              func() string
	stream            *peer.RaftStream
	log               *raftfix.Log
	network           raftfix.Transport // to servers by their IDs
	filter            *raftfix.Filter
	stopped           chan struct{}  // closed when Raft has stopped
	running           sync.WaitGroup // goroutines that end then
	reloading         sync.Mutex     // held by Reload
}

// Reload changes Raft's configuration as it is now. Changes by several goroutines lose nothing of
// each other.
func (c *consensus) Reload(change func(*raft.ReloadableConfig)) error {
	c.reloading.Lock()
	defer c.reloading.Unlock()
	before := c.ReloadableConfig()
	after := before
	if change(&after); after == before {
		return nil
	}
	return c.ReloadConfig(after)
}

// startRaft starts Raft between the three chains of decorators. Each chain reads from the inside
// (the network, the disk or the state machine) to the outside (Raft's view).
func (n *Node) startRaft() (*consensus, error) {
	c := &consensus{id: raft.ServerID(n.id.ServerID), addr: n.cfg.Stream.Addr, stream: n.peers.RaftStream(),
		stopped: make(chan struct{})}
	cfg := n.cfg.raft(n.id.ServerID, n.leader.Notify())
	c.network = n.network(c.stream)
	fail := func(err error) (*consensus, error) { return nil, errors.Join(err, c.network.Close()) }
	if err := n.bootstrap(cfg, c.network); err != nil {
		return fail(err)
	}
	machine, err := n.stateMachine()
	if err != nil {
		return fail(err)
	}
	log := n.log()
	c.log = log
	c.filter = raftfix.NewFilter(log, n.storage.Log, n.guard.TakeState)
	c.Raft, err = raft.NewRaft(cfg, machine, log, n.storage.Log, n.storage.Snapshots, n.filtered(c))
	if err != nil {
		return fail(fmt.Errorf("start raft: %w", err))
	}
	log.Attach(c.Raft)
	c.running.Go(func() { c.filter.Run(c.network.Consumer(), c.stopped) })
	return c, nil
}

// stop stops Raft, once it has no callers any more: a stopping Raft forgets entries that it has
// committed and not applied.
func (c *consensus) stop() error {
	c.Questions.Close()
	c.stream.Cut()
	err := c.Shutdown().Error() // closes the transport, too
	close(c.stopped)
	c.running.Wait()
	return err
}

// leader is the leader that this server follows, or is; empty if unknown.
func (c *consensus) leader() (raft.ServerAddress, raft.ServerID) { return raftfix.Leader(c.Raft) }

// header goes into messages that Raft's are like.
func (c *consensus) header() raft.RPCHeader {
	return raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(c.id),
		Addr: c.network.EncodePeer(c.id, raft.ServerAddress(c.addr())),
	}
}

// network is the inside of Raft's transport: connections to servers by their IDs. This server's own
// messages go out there.
func (n *Node) network(stream *peer.RaftStream) raftfix.Transport {
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: stream, MaxPool: raftPool, Timeout: n.cfg.Timeouts.Call,
		Logger: raftlog.New(n.cfg.Logger), MsgpackUseNewTimeFormat: true,
	})
	return n.peers.ByID(network)
}

// filtered is the rest of Raft's transport.
func (n *Node) filtered(c *consensus) raftfix.Transport {
	t := n.election.Listen(c.network)                            // which members answer
	t = raftfix.Lease(t, n.cfg.Timeouts.Lease, n.leaseExtension) // followers that are short of CPU answer late
	t = n.guard.GuardTransport(t)                                // a wrong state goes nowhere
	t = raftfix.DrainPipelines(t)                                // no message waits for an answer to be taken
	// neither a broken connection nor a late answer is a refusal
	t = raftfix.RepeatVotes(t, raftPool, n.awaitsVote)
	t = raftfix.SendGate(t, n.storage.Log.Disk()) // a leader with a hanging disk sends nothing
	t = raftfix.AwaitHeartbeats(t)                // none is handled when the log is closed
	return c.filter.Transport(t)                  // messages that come late
}

// leaseExtension is by how much the lease of a leader is extended for a follower.
func (n *Node) leaseExtension(id raft.ServerID) time.Duration {
	return n.lateness.Extension(string(id))
}

// awaitsVote is for how long a candidate waits for the vote of a server. Raft's own time-out is up
// to twice as long, by chance.
func (n *Node) awaitsVote(id raft.ServerID) time.Duration {
	return max(n.cfg.Timeouts.Election, n.cfg.Timeouts.Heartbeat) + n.lateness.Extension(string(id))
}

// log is Raft's log.
func (n *Node) log() *raftfix.Log {
	tail := logstore.NewTail(n.storage.Log, n.halt)  // writes of the end of the log
	cache := logstore.NewCache(tail, logCacheBytes)  // followers that keep up need no disk
	return raftfix.NewLog(cache, raftfix.LogOptions{ // the log's part of an installed snapshot
		Snapshots: n.storage.Snapshots, Sever: n.storage.Sever, Fatal: n.halt,
	})
}

// stateMachine is Raft's state machine.
func (n *Node) stateMachine() (raft.BatchingFSM, error) {
	known, err := n.storage.Log.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read the log in %s: %w", n.cfg.Dir, err)
	}
	if err := n.autopilot.Committed().Load(n.storage.Snapshots); err != nil {
		return nil, fmt.Errorf("list the snapshots in %s: %w", n.cfg.Dir, err)
	}
	guarded := n.guard.GuardFSM(n.fsm) // no snapshots of a wrong state
	n.machine = status.NewMachine(guarded, n.state, n.autopilot.Committed(), n.storage.Snapshots, known, n.stats,
		n.cfg.Logger)
	return n.machine, nil
}

// bootstrap makes this server the only member of a new group, if the configuration demands it and
// the server is new.
func (n *Node) bootstrap(cfg *raft.Config, network raft.Transport) error {
	if !n.cfg.Bootstrap {
		return nil
	}
	alone := raft.Configuration{Servers: []raft.Server{{
		ID: raft.ServerID(n.id.ServerID), Address: raft.ServerAddress(n.cfg.Stream.Addr()), Suffrage: raft.Voter,
	}}}
	if err := raftfix.Bootstrap(cfg, n.storage.Log, n.storage.Log, n.storage.Snapshots, network, alone); err != nil {
		return fmt.Errorf("%s: %w", n.cfg.Dir, err)
	}
	return nil
}
