package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/rpc"
)

// Kinds of requests and answers between servers. A number is never used for something else again.
const (
	callPropose byte = 1        // a request, as command writes it
	callRead    byte = 2        // a readVote
	callStatus  byte = 3        // a statusQuestion, or nothing
	callMembers byte = 4        // a Change in JSON
	callPing         = rpc.Ping // nothing; answered at once
	callTerm    byte = 6        // nothing; answered with the term that the server is in
	callState   byte = 7        // a stateQuestion in JSON; answered with a stateAnswer
	callIsolate byte = 8        // a verdict in JSON
	callHello   byte = 9        // a hello in JSON; answered with one
	callReach   byte = 10       // a reach in JSON
	callLost    byte = 11       // a lostQuestion in JSON; answered with a lostAnswer
	// 12 told why a leader handed over.

	answerOK          byte = 128
	answerUnavailable byte = 129 // a text
	answerUnknown     byte = 130 // a text
	answerOverloaded  byte = 131 // nothing
	answerRefused     byte = 132 // a text
	answerTooLarge    byte = 133 // a text
	answerInvalid     byte = 134 // a text
	answerDiskFull    byte = 135 // nothing
)

var errNoLeader = fmt.Errorf("%w: the servers have no leader at the moment", kv.ErrUnavailable)

// RefusedError is returned for a change of members that the leader will not make.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// PendingError is returned for a removal or demotion that is recorded and cannot be carried out
// now. It is as soon as it can be, whoever leads then. Promoting the server takes it back.
type PendingError struct{ Reason string }

func (e *PendingError) Error() string { return e.Reason }

// clients are the links to the other servers.
type clients struct {
	node *Node

	mu     sync.Mutex
	byAddr map[string]*rpc.Client // by destination
	closed bool
}

func newClients(n *Node) *clients { return &clients{node: n, byAddr: make(map[string]*rpc.Client)} }

// to returns the link to a destination.
func (c *clients) to(addr string) *rpc.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.byAddr[addr]
	if !ok {
		n := c.node
		found = rpc.NewClient(rpc.ClientConfig{
			Running: &n.links, Patience: n.cfg.Timeouts.Call / 2, Urgent: urgent,
			Dial: func(ctx context.Context) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Call)
				defer cancel()
				conn, err := greet(ctx, n.cfg.Stream, addr, ProtoStore, n.id)
				n.heed(err)
				return conn, err
			},
		})
		if c.closed {
			found.Close()
		}
		c.byAddr[addr] = found
	}
	return found
}

// keep closes the links to all but these, which are as dialed returns them.
func (c *clients) keep(members []Member) {
	addrs := make(map[string]bool, len(members))
	for _, m := range members {
		addrs[m.Address] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, each := range c.byAddr {
		if !addrs[addr] {
			each.Close()
			delete(c.byAddr, addr)
		}
	}
}

func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, each := range c.byAddr {
		each.Close()
	}
}

// leader returns how to dial the leader, and whether it is this server.
func (n *Node) leader() (addr string, local bool, err error) {
	if n.ctx.Err() != nil {
		return "", false, kv.ErrClosed
	}
	address, id := n.leaderWithID()
	if id == "" {
		return "", false, n.noLeader()
	}
	local = string(id) == n.id.ServerID
	if local {
		if err := n.mayLead(); err != nil {
			return "", false, err
		}
	}
	return string(address), local, nil
}

// errDeposed is why a call to a leader is given up: it may never answer, as when it was cut off,
// and another one can be asked.
var errDeposed = errors.New("another server leads now")

// followed tells those who wait for a leader's answer when another server is known to lead.
type followed struct {
	mu     sync.Mutex
	leader raft.ServerID
	over   chan struct{} // closed when another one than leader is known to lead
	lost   time.Time     // since when nobody is known to lead; zero while somebody is
}

// tenure returns a channel that is closed when another server is known to lead than now.
func (f *followed) tenure() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over == nil {
		f.over = make(chan struct{})
	}
	return f.over
}

// learn is told who leads, and tells whether that is another one than before; empty is nobody,
// which ends nothing: the last one may still answer.
func (f *followed) learn(leader raft.ServerID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case leader != "":
		f.lost = time.Time{}
	case f.lost.IsZero():
		f.lost = time.Now()
	}
	if leader == "" || leader == f.leader {
		return false
	}
	f.leader = leader
	if f.over != nil {
		close(f.over)
		f.over = nil
	}
	return true
}

// leaderless returns since when nobody is known to lead; zero while somebody is.
func (f *followed) leaderless() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

// Propose brings the request into the log, wherever the leader is.
func (n *Node) Propose(ctx context.Context, req *command.Request) (command.Outcome, error) {
	outcome, err := n.proposeAnywhere(ctx, req)
	n.stats.requests.WithLabelValues(outcomeName(outcome, err)).Inc()
	return outcome, err
}

func (n *Node) proposeAnywhere(ctx context.Context, req *command.Request) (command.Outcome, error) {
	if err := n.quarantine.err(); err != nil {
		return command.Outcome{}, err
	}
	over := n.followed.tenure()
	leader, local, err := n.leader()
	if err != nil {
		return command.Outcome{}, err
	}
	if local {
		if err := n.storage.reserve.takes(req); err != nil {
			return command.Outcome{}, err
		}
		return n.proposer.propose(ctx, req)
	}
	began := time.Now()
	f, err := n.peers.to(leader).CallUntil(ctx, over, errDeposed, callPropose, command.AppendRequest(nil, req))
	n.stats.forwarded("write", began, err)
	if err != nil {
		return command.Outcome{}, n.callError(err, kv.ErrUnknownOutcome)
	}
	if f.Kind == answerOK {
		outcome, err := command.DecodeOutcome(f.Payload)
		if err != nil {
			err = fmt.Errorf("%w: answer of the leader: %w", kv.ErrUnknownOutcome, err)
		}
		return outcome, err
	}
	return command.Outcome{}, answerError(f)
}

func (n *Node) forwardRead(ctx context.Context, leader string, over <-chan struct{}) (uint64, error) {
	vote := readVote{term: n.raft.CurrentTerm(), id: n.id.ServerID}
	began := time.Now()
	f, err := n.peers.to(leader).CallUntil(ctx, over, errDeposed, callRead, vote.encode())
	n.stats.forwarded("read", began, err)
	if err != nil {
		return 0, n.callError(err, kv.ErrUnavailable)
	}
	if f.Kind == answerOK && len(f.Payload) == 8 {
		return binary.LittleEndian.Uint64(f.Payload), nil
	}
	return 0, answerError(f)
}

// callError says what a failed call means; sent is the meaning when the request may have arrived.
func (n *Node) callError(err, sent error) error {
	switch {
	case errors.Is(err, rpc.ErrTooLarge):
		return fmt.Errorf("%w: %w", kv.ErrTooLarge, err)
	case errors.Is(err, rpc.ErrNotSent):
		return fmt.Errorf("%w: cannot reach the leader: %w", kv.ErrUnavailable, err)
	case n.ctx.Err() != nil && sent != kv.ErrUnknownOutcome:
		return kv.ErrClosed
	}
	return fmt.Errorf("%w: lost the leader: %w", sent, err)
}

// answerError translates an answer that is not answerOK.
func answerError(f rpc.Frame) error {
	switch f.Kind {
	case answerUnavailable:
		return fmt.Errorf("%w: %s", kv.ErrUnavailable, f.Payload)
	case answerOverloaded:
		return kv.ErrOverloaded
	case answerDiskFull:
		return errDiskStuck
	case answerRefused:
		return &RefusedError{Reason: string(f.Payload)}
	case answerTooLarge:
		return fmt.Errorf("%w: as the leader sees it: %s", kv.ErrTooLarge, f.Payload)
	case answerInvalid:
		return fmt.Errorf("%w: as the leader sees it: %s", kv.ErrInvalid, f.Payload)
	}
	return fmt.Errorf("%w: %s", kv.ErrUnknownOutcome, f.Payload)
}

// refuse is the way back of answerError.
func refuse(err error) (byte, []byte) {
	var refused *RefusedError
	switch {
	case errors.As(err, &refused):
		return answerRefused, []byte(refused.Reason)
	case errors.Is(err, kv.ErrUnknownOutcome): // before ErrClosed, which may be why it is not known
		return answerUnknown, []byte(err.Error())
	case errors.Is(err, kv.ErrOverloaded):
		return answerOverloaded, nil
	case errors.Is(err, kv.ErrDiskFull):
		return answerDiskFull, nil
	case errors.Is(err, kv.ErrTooLarge):
		return answerTooLarge, []byte(err.Error())
	case errors.Is(err, kv.ErrInvalid):
		return answerInvalid, []byte(err.Error())
	case errors.Is(err, kv.ErrUnavailable), errors.Is(err, kv.ErrClosed):
		return answerUnavailable, []byte(err.Error())
	}
	return answerUnknown, []byte(err.Error())
}

// handle answers another server. It does not forward: a server that asks the wrong one asks again.
func (n *Node) handle(ctx context.Context, kind byte, payload []byte) (byte, []byte) {
	switch kind {
	case callPropose:
		return n.handlePropose(ctx, payload)
	case callRead:
		return n.handleRead(ctx)
	case callStatus:
		return n.handleStatus(ctx, payload)
	case callMembers:
		return n.handleMembers(ctx, payload)
	case callState:
		return n.handleState(ctx, payload)
	case callIsolate:
		return n.handleVerdict(payload)
	case callReach:
		return n.handleReach(ctx, payload)
	case callHello:
		return n.handleHello(payload)
	case callLost:
		return n.handleLost(ctx, payload)
	}
	return answerRefused, fmt.Appendf(nil, "this server does not know requests of kind %d", kind)
}

// urgent tells which calls are sent at once: writes come in numbers, and are better sent together;
// one question for a read stands for many readers.
func urgent(kind byte) bool { return kind == callTerm || kind == callRead }

func (n *Node) handler() rpc.Handler {
	return rpc.Handler{
		Answer: n.handle, AtOnce: n.handleAtOnce, Urgent: urgent,
		TooLarge: func() (byte, []byte) { return refuse(rpc.ErrTooLarge) },
	}
}

// handleAtOnce answers the questions that need nothing but this server's word.
func (n *Node) handleAtOnce(kind byte, payload []byte) (byte, []byte, bool) {
	switch kind {
	case callRead:
		if revision, ok := n.confirmBy(decodeReadVote(payload)); ok {
			return answerOK, binary.LittleEndian.AppendUint64(nil, revision), true
		}
	case callPing:
		return answerOK, nil, true
	case callTerm:
		return answerOK, binary.LittleEndian.AppendUint64(nil, n.raft.CurrentTerm()), true
	}
	return 0, nil, false
}

func (n *Node) handlePropose(ctx context.Context, payload []byte) (byte, []byte) {
	if _, local, err := n.leader(); err != nil || !local || n.quarantine.err() != nil {
		return refuse(errNoLeader)
	}
	req, err := command.DecodeRequest(payload)
	if err != nil {
		return answerRefused, []byte(err.Error())
	}
	if req.Kind == command.KindTxn && n.cfg.CheckTxn != nil {
		if err := n.cfg.CheckTxn(&req.Txn); err != nil {
			return refuse(err)
		}
	}
	if err := n.storage.reserve.takes(&req); err != nil {
		return refuse(err)
	}
	outcome, err := n.proposer.propose(ctx, &req)
	if err != nil {
		return refuse(err)
	}
	return answerOK, command.AppendOutcome(nil, &outcome)
}

func (n *Node) handleRead(ctx context.Context) (byte, []byte) {
	if _, local, err := n.leader(); err != nil || !local || n.quarantine.err() != nil {
		return refuse(errNoLeader)
	}
	revision, err := n.reads.revision(ctx, n.ctx)
	if err != nil {
		return refuse(fmt.Errorf("%w: %w", kv.ErrUnavailable, err))
	}
	return answerOK, binary.LittleEndian.AppendUint64(nil, revision)
}

// acceptPeers serves the other servers until the listener is closed.
func (n *Node) acceptPeers(l net.Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { // ends with the connection, or with the node
			err := rpc.Serve(n.ctx, &checked{Conn: conn, self: n.id, succeeded: n.succeeded}, n.handler())
			if n.ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				n.noteEnd(conn.RemoteAddr(), err)
			}
		})
	}
}
