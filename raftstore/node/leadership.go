package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
)

// ErrLeadershipEnded is the cause of a leadership context that has ended because another server
// leads, or none.
var ErrLeadershipEnded = errors.New("this server does not lead any more")

// endedError is an ErrLeadershipEnded that says why.
type endedError struct{ why string }

func (e *endedError) Error() string { return ErrLeadershipEnded.Error() + ": " + e.why }

// Unwrap makes it an ErrLeadershipEnded.
func (e *endedError) Unwrap() error { return ErrLeadershipEnded }

// leadership follows Raft's word on whether this server leads.
//
//	follower ──elected──▶ elected ──its first entry is applied──▶ leading
//	    ▲                    │                                      │
//	    └────────────────────┴───────────deposed or closed──────────┘
//
// Only in the state leading is everything applied that was acknowledged by leaders before.
type leadership struct {
	logger *slog.Logger
	// told is called when a tenure that was leading has ended, with why. It must not block, nor
	// call back.
	told func(term uint64, why string)

	mu      sync.Mutex
	current *tenure // nil: follower
	changed chan struct{}
	closed  bool
}

// tenure is one time in office.
type tenure struct {
	ctx  context.Context // ends with it
	end  context.CancelCauseFunc
	term uint64 // 0 until it is leading; guarded by leadership.mu
}

func newLeadership(logger *slog.Logger) *leadership {
	return &leadership{logger: logger, changed: make(chan struct{})}
}

func (l *leadership) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// elected begins a tenure and serves it, in a goroutine of offices that ends with it. Nothing
// begins after close, nor while a tenure lasts.
func (l *leadership) elected(parent context.Context, offices *sync.WaitGroup, serve func(*tenure)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.current != nil {
		return
	}
	t := &tenure{}
	t.ctx, t.end = context.WithCancelCause(parent)
	l.current = t
	offices.Go(func() { serve(t) })
}

func (l *leadership) leading(t *tenure, term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == t {
		t.term = term
		l.logger.Info("this server leads", "term", term)
		l.notify()
	}
}

func (l *leadership) deposed(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.current; t != nil {
		l.current = nil
		t.end(cause)
		if t.term != 0 {
			reason := cause.Error()
			if ended, ok := errors.AsType[*endedError](cause); ok {
				reason = ended.why
			}
			l.logger.Info("this server does not lead any more", "term", t.term, "reason", reason)
			if l.told != nil {
				l.told(t.term, reason)
			}
		}
		l.notify()
	}
}

func (l *leadership) close() {
	l.deposed(kv.ErrClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.notify()
	}
}

// term returns the term in which this server is leading, or 0.
func (l *leadership) term() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		return 0
	}
	return l.current.term
}

// await waits until this server is leading. The context that it returns is derived from ctx.
func (l *leadership) await(ctx context.Context) (context.Context, uint64, error) {
	for {
		l.mu.Lock()
		t, changed, closed := l.current, l.changed, l.closed
		var term uint64
		if t != nil {
			term = t.term
		}
		l.mu.Unlock()
		if closed {
			return nil, 0, kv.ErrClosed
		}
		if term != 0 && t.ctx.Err() == nil {
			return during(ctx, t.ctx), term, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// during derives a context from ctx that ends with the tenure as well.
func during(ctx, tenure context.Context) context.Context {
	leading, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(tenure, func() { end(context.Cause(tenure)) })
	context.AfterFunc(leading, func() { detach() })
	return leading
}

// enterOffice begins a tenure when Raft has this server for the leader, and it may be: it may have
// become one, as the only voter, or not have stopped yet to be one, while it could not. It is
// called by followLeadership alone, which hears of the end after this.
func (n *Node) enterOffice() {
	if n.raft.State() == raft.Leader && n.mayLead() == nil {
		n.leadership.elected(n.ctx, &n.offices, n.takeOffice)
	}
}

// mayLead returns an ErrUnavailable while this server does not lead, whatever Raft says.
func (n *Node) mayLead() error {
	if n.storage.Log.Disk().Check() != nil {
		return errHungLeader
	}
	return nil
}

// followLeadership takes Raft's notifications, and those of the disk, until Raft has stopped. Raft
// waits for it to take each, so it does nothing that blocks.
func (n *Node) followLeadership() {
	hung := false
	for {
		select {
		case elected := <-n.notify:
			if elected {
				n.enterOffice()
			} else {
				n.leadership.deposed(n.whyDeposed())
			}
		case <-n.storage.Log.Disk().Changed():
			hung = n.followDisk(hung)
		case <-n.stopped:
			return
		}
	}
}

// whyDeposed tells why Raft has just ended the leadership of this server.
func (n *Node) whyDeposed() error {
	heir := n.heir.Swap(nil)
	switch now := n.raft.CurrentTerm(); {
	case heir != nil:
		return &endedError{"it has handed over to " + *heir}
	case now > n.leadership.term():
		return &endedError{fmt.Sprintf("another server stands for election, or leads, in term %d", now)}
	}
	if m, ok := n.member(n.id.ServerID); !ok || !m.Voter {
		return &endedError{"it has no vote any more"}
	}
	return &endedError{fmt.Sprintf("too few servers have answered it for %s: it may be cut off", n.cfg.Timeouts.Lease.Round(time.Millisecond))}
}

// takeOffice brings an empty entry through the log. When it is applied, so is everything that was
// committed in earlier terms; and the entry tells the term that it was committed in.
//
// A server in quarantine does not: it is in office only to hand it on.
func (n *Node) takeOffice(t *tenure) {
	n.offices.Go(func() { n.election.WatchFollowers(t.ctx) }) // ends with the tenure
	for t.ctx.Err() == nil && n.guard.Err() == nil {
		response, err := n.mark()
		if err == nil {
			n.leadership.leading(t, response.Term)
			n.election.Leads(response.Term)
			n.offices.Go(func() { n.announce(t.ctx, response.Term) })   // ends with the tenure
			n.offices.Go(func() { n.guard.CompareWhileLeading(t.ctx) }) // ends with the tenure
			n.offices.Go(func() { n.leaveFullDisk(t.ctx) })             // ends with the tenure
			n.autopilot.Manage(t.ctx, response.Term)
			return
		}
		n.cfg.Logger.Debug("cannot take office yet", "err", err)
		select {
		case <-t.ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}
