package readindex

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/rpc"
	"github.com/barque/barque/raftstore/status"
)

// Options of a Reader. All are needed.
type Options struct {
	ID          string
	CallTimeout time.Duration
	Stats       *status.Metrics
}

// Raft is the Reader's interface of Raft, a *raft.Raft.
type Raft interface {
	CurrentTerm() uint64
	CommitIndex() uint64
	GetConfiguration() raft.ConfigurationFuture
}

// Peers are the links to the other servers. It is a *peer.Peers.
type Peers interface {
	Dialed() []group.Member
	At(dest string) *rpc.Client
}

// Server is the Reader's interface of the server.
type Server interface {
	// LeaderAt returns the leader's address, and whether it is this server. LeaderChanged is closed
	// when another leader is known than that one.
	LeaderAt() (dest string, local bool, err error)
	LeaderChanged(dest string) <-chan struct{}
	// Term is the term in which this server leads; 0 while it does not.
	Term() uint64
	// MayServe returns an error while this server may not serve.
	MayServe() error
}

// Reader finds revisions to read at.
type Reader struct {
	opts     Options
	fsm      *fsm.FSM
	raft     Raft
	peers    Peers
	server   Server
	rounds   *rounds
	quorum   *quorum
	answered answered
	voters   voters
	started  chan struct{} // closed by Run
	stopped  <-chan struct{}
}

// New returns a Reader, which answers while Run runs, and not after stopped was closed.
func New(opts Options, machine *fsm.FSM, consensus Raft, peers Peers, server Server, stopped <-chan struct{}) *Reader {
	r := &Reader{opts: opts, fsm: machine, raft: consensus, peers: peers, server: server, started: make(chan struct{}),
		stopped: stopped}
	r.answered.last, r.answered.before = time.Now(), time.Now()
	r.rounds = newRounds(opts.CallTimeout, opts.Stats, r.round)
	r.quorum = &quorum{members: peers.Dialed, waiting: make(map[string][]*acks)}
	return r
}

// Run makes one exchange after the other while there are reads, until ctx ends. It waits for
// pending requests.
func (r *Reader) Run(ctx context.Context) {
	r.quorum.termOf = func(addr string) (uint64, error) { return r.termOf(ctx, addr) }
	close(r.started)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { r.watchVoters(ctx) })
	r.rounds.run(ctx)
	r.quorum.running.Wait()
}

// Revision returns a revision that reflects everything acknowledged before the call.
func (r *Reader) Revision(ctx context.Context) (uint64, error) {
	if r.closed() {
		return 0, kv.ErrClosed
	}
	if err := r.server.MayServe(); err != nil {
		return 0, err
	}
	return r.rounds.revision(ctx, r.stopped)
}

func (r *Reader) closed() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return false
	}
}

// round is one exchange, wherever the leader is.
func (r *Reader) round(ctx context.Context) (uint64, error) {
	leader, local, err := r.server.LeaderAt()
	if err != nil {
		return 0, err
	}
	if local {
		return r.confirm(ctx)
	}
	return r.forward(ctx, leader)
}

// forward asks the leader.
func (r *Reader) forward(ctx context.Context, leader string) (uint64, error) {
	ack := Ack{Term: r.raft.CurrentTerm(), ID: r.opts.ID}
	began, over := time.Now(), r.server.LeaderChanged(leader)
	f, err := r.peers.At(leader).CallUntil(ctx, over, peer.ErrLeaderChanged, peer.CallRead, ack.Encode())
	r.opts.Stats.Forwarded("read", began, err)
	switch {
	case err == nil && f.Kind == peer.AnswerOK && len(f.Payload) == 8:
		return binary.LittleEndian.Uint64(f.Payload), nil
	case err == nil:
		return 0, peer.AnswerError(f)
	case r.closed() && !errors.Is(err, rpc.ErrTooLarge) && !errors.Is(err, rpc.ErrNotSent):
		return 0, kv.ErrClosed
	}
	return 0, peer.CallError(err, kv.ErrUnavailable)
}

// confirm returns a revision that reflects everything committed before the call, on the leader.
//
// The commit index is read first. Then a quorum confirms that it is in no later term. So before the
// call no other leader had been elected that could have committed entries. The answer is a revision
// and not an index because other servers can wait for a revision.
//
// Raft's VerifyLeader is no substitute: it also counts the answer to a heartbeat that was sent
// before the call. A leader that was frozen finds such answers waiting when it wakes up, and would
// believe that it still leads.
func (r *Reader) confirm(ctx context.Context) (uint64, error) {
	term := r.server.Term()
	if term == 0 {
		return 0, group.ErrNoLeader
	}
	committed := r.raft.CommitIndex()
	if err := r.quorum.take(ctx, term); err != nil {
		return 0, err
	}
	if r.raft.CurrentTerm() != term {
		return 0, group.ErrNoLeader
	}
	if err := r.fsm.Waiter().Wait(ctx, committed); err != nil {
		return 0, fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	return r.fsm.State().Revision(), nil
}

// ConfirmTerm returns nil if a quorum was in no later term after the call, so that this server
// still led the term then. It changes nothing, and waits for nothing to be applied.
func (r *Reader) ConfirmTerm(ctx context.Context, term uint64) error {
	if !r.ready() {
		return kv.ErrClosed
	}
	if term == 0 || r.server.Term() != term || r.server.MayServe() != nil {
		return group.ErrNoLeader
	}
	limited, cancel := context.WithTimeoutCause(ctx, r.opts.CallTimeout, errSlowRound)
	defer cancel()
	if r.answered.note(r.raft.CurrentTerm) != term { // this server is one of the quorum
		return group.ErrNoLeader
	}
	if err := r.quorum.take(limited, term); err != nil {
		return err
	}
	if r.raft.CurrentTerm() != term {
		return group.ErrNoLeader
	}
	return nil
}

// ready reports whether Run runs.
func (r *Reader) ready() bool {
	select {
	case <-r.started:
		return !r.closed()
	default:
		return false
	}
}

// Ack identifies a server that asks the leader for a read revision, with its term at the time of
// the request, which is after the read began. It is the payload of peer.CallRead.
type Ack struct {
	Term uint64
	ID   string
}

// Encode returns it as it goes over the wire.
func (a Ack) Encode() []byte {
	return append(binary.LittleEndian.AppendUint64(nil, a.Term), a.ID...)
}

// DecodeAck returns the zero Ack, which is no server's, for any other payload.
func DecodeAck(payload []byte) Ack {
	if len(payload) < 8 {
		return Ack{}
	}
	return Ack{Term: binary.LittleEndian.Uint64(payload), ID: string(payload[8:])}
}

// ConfirmBy is confirm if the asking server makes a quorum with this one, as in a group of three:
// its term counts like another voter's answer. The term is from a moment after the read began, and
// before this server read its commit index: no other leader had been elected until then. ok is
// false if that is not certain at once.
func (r *Reader) ConfirmBy(ack Ack) (revision uint64, ok bool) {
	if !r.serves() {
		return 0, false
	}
	term := r.server.Term()
	if term == 0 || ack.Term > term {
		return 0, false
	}
	voters, agree := 0, 0
	for _, s := range r.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		if voters++; string(s.ID) == r.opts.ID || string(s.ID) == ack.ID {
			agree++
		}
	}
	if agree < voters/2+1 {
		return 0, false
	}
	committed := r.raft.CommitIndex()
	if r.raft.CurrentTerm() != term || r.fsm.Applied().Index < committed {
		return 0, false
	}
	return r.fsm.State().Revision(), true
}

// serves tells whether this server leads and may answer.
func (r *Reader) serves() bool {
	_, local, err := r.server.LeaderAt()
	return err == nil && local && r.server.MayServe() == nil
}

// Handle answers another server that reads. It does not forward.
func (r *Reader) Handle(ctx context.Context) (byte, []byte) {
	if !r.serves() {
		return peer.Refuse(group.ErrNoLeader)
	}
	revision, err := r.rounds.revision(ctx, r.stopped)
	if err != nil {
		return peer.Refuse(fmt.Errorf("%w: %w", kv.ErrUnavailable, err))
	}
	return peer.AnswerOK, binary.LittleEndian.AppendUint64(nil, revision)
}

// HandleAtOnce answers it when no other server has to be asked.
func (r *Reader) HandleAtOnce(payload []byte) (byte, []byte, bool) {
	revision, ok := r.ConfirmBy(DecodeAck(payload))
	if !ok {
		return 0, nil, false
	}
	return peer.AnswerOK, binary.LittleEndian.AppendUint64(nil, revision), true
}

// HandleTerm answers a leader that asks for this server's term.
func (r *Reader) HandleTerm() (byte, []byte) {
	return peer.AnswerOK, binary.LittleEndian.AppendUint64(nil, r.answered.note(r.raft.CurrentTerm))
}

// termOf asks another server for its term.
func (r *Reader) termOf(ctx context.Context, addr string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.CallTimeout)
	defer cancel()
	f, err := r.peers.At(addr).Call(ctx, peer.CallTerm, nil)
	switch {
	case err != nil:
		return 0, err
	case f.Kind != peer.AnswerOK || len(f.Payload) != 8:
		return 0, peer.AnswerError(f)
	}
	return binary.LittleEndian.Uint64(f.Payload), nil
}
