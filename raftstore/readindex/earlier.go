package readindex

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// How long ago can a leader of an earlier term have proven that it led? A proof needs answers of a
// quorum, and each server notes when it last gave one. A new leader asks a quorum. From then on no
// earlier leader gets a proof, because two quorums have a server in common, and that one is in the
// new term. So the newest answer of these servers is a bound for all proofs.
//
//	old leader ──your term?──▶ voter: notes its clock, and reads its term
//	                             │ votes in a new term
//	new leader ──since when?───▶ voter: so long ago, in an earlier term
//
// A process that has just started cannot know what the one before answered: its start counts as
// an answer.
//
// Quorums of two configurations have a server in common if the second one is the first one with
// one change. A leader changes its configuration again only when a quorum has the change before.
// So the configurations of the two leaders are that near if the new leader's has stayed the same
// since the bound. The new leader looks once a second. It overlooks a set of voters that became
// another one and the same again within that time, which takes four changes: a new voter must have
// been stable for a while.

// answered notes when this server last gave its term to a leader.
type answered struct {
	mu     sync.Mutex
	term   uint64    // the newest in which it did
	last   time.Time // when it did
	before time.Time // when it last did in an earlier term
}

// note reads this server's term to give it away. The clock is read first: what the leader noted
// before its question was noted before that.
func (a *answered) note(current func() uint64) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	term := current()
	if term > a.term {
		a.before, a.term = a.last, term
	}
	a.last = now
	return term
}

// errTerm is the error of a server that has not met the term, or has met a later one.
var errTerm = errors.New("the server is in another term")

// since returns for how long this server has given its term in no term before the given one. It
// will give none from now on.
func (a *answered) since(term uint64, current func() uint64) (time.Duration, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch now := current(); {
	case now != term || a.term > term:
		return 0, fmt.Errorf("%w: %d, and %d is asked for", errTerm, now, term)
	case a.term == term:
		return time.Since(a.before), nil
	}
	return time.Since(a.last), nil
}

// voters knows since when the set of voters is the same, at least.
type voters struct {
	mu    sync.Mutex
	ids   []raft.ServerID // in order
	since time.Time
}

// votersEvery is the interval of looks at the voters.
const votersEvery = time.Second

// look takes the voters of now, and returns for how long they are the same.
func (v *voters) look(c raft.Configuration) time.Duration {
	var ids []raft.ServerID
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			ids = append(ids, s.ID)
		}
	}
	slices.Sort(ids)
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.Equal(ids, v.ids) {
		v.ids, v.since = ids, time.Now()
	}
	return time.Since(v.since)
}

// watchVoters looks until ctx ends.
func (r *Reader) watchVoters(ctx context.Context) {
	tick := time.NewTicker(votersEvery)
	defer tick.Stop()
	for {
		r.voters.look(r.raft.GetConfiguration().Configuration())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// SinceEarlierProof returns how long ago, at least, a leader of a term before this server's term
// can have proven that it led. It fails if no quorum says so, as with servers of earlier versions.
func (r *Reader) SinceEarlierProof(ctx context.Context, term uint64) (time.Duration, error) {
	if !r.ready() {
		return 0, kv.ErrClosed
	}
	if term == 0 || r.server.Term() != term {
		return 0, group.ErrNoLeader
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.CallTimeout, errSlowRound)
	defer cancel()
	type answer struct {
		since time.Duration
		err   error
	}
	answers, voters, open := make(chan answer, len(r.peers.Dialed())), 0, 0
	var errs []error
	var ages []time.Duration
	take := func(a answer) {
		if a.err != nil {
			errs = append(errs, a.err)
			return
		}
		ages = append(ages, a.since)
	}
	for _, m := range r.peers.Dialed() {
		switch {
		case !m.Voter:
			continue
		case m.Self:
			since, err := r.answered.since(term, r.raft.CurrentTerm)
			take(answer{since, err})
		default:
			open++
			go func() { // ends with ctx
				since, err := r.sinceOf(ctx, m.Address, term)
				answers <- answer{since, err}
			}()
		}
		voters++
	}
	for ; open > 0 && len(ages) < voters/2+1; open-- {
		take(<-answers)
	}
	if len(ages) < voters/2+1 {
		return 0, fmt.Errorf("%w: no quorum knows when an earlier leader last proved that it led: %w",
			kv.ErrUnavailable, errors.Join(errs...))
	}
	return min(slices.Min(ages), r.voters.look(r.raft.GetConfiguration().Configuration())), nil
}

// sinceOf asks another server.
func (r *Reader) sinceOf(ctx context.Context, addr string, term uint64) (time.Duration, error) {
	f, err := r.peers.At(addr).Call(ctx, peer.CallEarlier, binary.LittleEndian.AppendUint64(nil, term))
	switch {
	case err != nil:
		return 0, err
	case f.Kind != peer.AnswerOK || len(f.Payload) != 8:
		return 0, peer.AnswerError(f)
	}
	return time.Duration(binary.LittleEndian.Uint64(f.Payload)), nil
}

// HandleEarlier answers a new leader's question.
func (r *Reader) HandleEarlier(payload []byte) (byte, []byte) {
	if len(payload) != 8 {
		return peer.AnswerRefused, []byte("the question for earlier proofs has no term")
	}
	since, err := r.answered.since(binary.LittleEndian.Uint64(payload), r.raft.CurrentTerm)
	if err != nil {
		return peer.AnswerUnavailable, []byte(err.Error())
	}
	return peer.AnswerOK, binary.LittleEndian.AppendUint64(nil, uint64(max(since, 0)))
}
