package node

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/raftfix"
	"github.com/barque/barque/raftstore/raftlog"
	"github.com/barque/barque/raftstore/status"
)

// raftPool is how many idle connections Raft keeps to each server.
const raftPool = 3

// logCacheBytes is twice what may be under way to a quorum, so that followers that keep up are
// served from memory.
const logCacheBytes = 2 * maxInFlight * maxEntryBytes

// startRaft starts Raft between the three chains of decorators. Each reads from the inside, which
// is the network, the disk or the state machine, to the outside, which is what Raft has.
func (n *Node) startRaft() error {
	cfg := n.cfg.raft(n.id.ServerID, n.notify)
	n.transport = n.network()
	fail := func(err error) error { return errors.Join(err, n.transport.Close()) }
	if err := n.bootstrap(cfg); err != nil {
		return fail(err)
	}
	machine, err := n.stateMachine()
	if err != nil {
		return fail(err)
	}
	log := n.log()
	n.filter = raftfix.NewFilter(log)
	n.raft, err = raft.NewRaft(cfg, machine, log, n.storage.Log, n.storage.Snapshots, n.filtered(n.transport))
	if err != nil {
		return fail(fmt.Errorf("start raft: %w", err))
	}
	log.Attach(n.raft)
	n.following.Go(func() { n.filter.Run(n.transport.Consumer(), n.stopped) })
	return nil
}

// network is the inside of Raft's transport: connections to servers by their IDs. This server's own
// messages go out there.
func (n *Node) network() raftfix.Transport {
	n.stream = n.peers.RaftStream()
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.stream, MaxPool: raftPool, Timeout: n.cfg.Timeouts.Call,
		Logger: raftlog.New(n.cfg.Logger), MsgpackUseNewTimeFormat: true,
	})
	return n.peers.ByID(network)
}

// filtered is the rest of Raft's transport.
func (n *Node) filtered(t raftfix.Transport) raftfix.Transport {
	t = n.election.Listen(t)                      // which members answer
	t = n.guard.GuardTransport(t)                 // a wrong state goes nowhere
	t = raftfix.DrainPipelines(t)                 // no message waits for an answer to be taken
	t = raftfix.RepeatVotes(t, raftPool)          // a broken connection is no refusal
	t = raftfix.SendGate(t, n.storage.Log.Disk()) // a leader whose disk hangs says nothing
	return n.filter.Transport(t)                  // messages that come late
}

// log is Raft's log.
func (n *Node) log() *raftfix.Log {
	tail := logstore.NewTail(n.storage.Log, n.halt)  // writes of the end of the log
	cache := logstore.NewCache(tail, logCacheBytes)  // followers that keep up need no disk
	return raftfix.NewLog(cache, raftfix.LogOptions{ // what an installed snapshot does to it
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
	n.machine = status.NewMachine(guarded, n.state, n.autopilot.Committed(), n.storage.Snapshots, known, n.stats, n.cfg.Logger)
	return n.machine, nil
}

// bootstrap makes this server the only member of a new group, if it is told to and is new.
func (n *Node) bootstrap(cfg *raft.Config) error {
	if !n.cfg.Bootstrap {
		return nil
	}
	alone := raft.Configuration{Servers: []raft.Server{{
		ID: raft.ServerID(n.id.ServerID), Address: raft.ServerAddress(n.cfg.Stream.Addr()), Suffrage: raft.Voter,
	}}}
	if err := raftfix.Bootstrap(cfg, n.storage.Log, n.storage.Log, n.storage.Snapshots, n.transport, alone); err != nil {
		return fmt.Errorf("%s: %w", n.cfg.Dir, err)
	}
	return nil
}
