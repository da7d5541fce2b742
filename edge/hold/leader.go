package hold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/barque/barque/internal/loglimit"
)

// LeaderConfig of a Leader. All but Earlier, Granted and Logger are needed.
type LeaderConfig struct {
	// Confirm returns nil if a quorum has proven, after the call, that this server leads the term.
	Confirm func(ctx context.Context, term uint64) error
	// Earlier returns how long ago, at least, Confirm can have succeeded on the leader of an
	// earlier term; it does not any more. An error means that it is not known, and it is asked
	// again. Nil: it is never known.
	Earlier func(ctx context.Context, term uint64) (time.Duration, error)
	// Demands returns all addresses, and a channel that is closed when they change; nil of that if
	// it is not known. partial is set while some are not known yet.
	Demands func() (all []Demand, partial bool, changed <-chan struct{})
	// Gone reports whether no process of the node runs: the kernel at its address refuses
	// connections. It takes a fraction of a second at most.
	Gone func(ctx context.Context, node string) bool
	// Clock is Boot, unless in tests.
	Clock func() Instant
	// Granted is called when a node gets an address. It must not block.
	Granted func(addr netip.Addr, node string)
	Logger  *slog.Logger
}

// Leader grants addresses while this server leads. Make it with NewLeader.
type Leader struct {
	config LeaderConfig
	kick   chan struct{}   // holds a token when there may be something to do
	lines  loglimit.Causes // about unfounded claims, by node

	mu       sync.Mutex
	term     uint64  // 0 while this server does not lead
	led      uint64  // the newest term for which Lead was called
	ledger   *ledger // of that term
	sessions uint64
	visits   map[uint64]visit
}

// visit is the leader's access to an open session.
type visit struct {
	wake chan struct{} // holds a token
	link Link
}

// NewLeader returns a Leader that grants nothing yet.
func NewLeader(c LeaderConfig) *Leader {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Granted == nil {
		c.Granted = func(netip.Addr, string) {}
	}
	return &Leader{config: c, kick: make(chan struct{}, 1), visits: map[uint64]visit{}}
}

const (
	// pendingTick is the interval of looks while an address is not where it is to be.
	pendingTick = 50 * time.Millisecond
	// restTick is that of looks when all is well. Each change kicks the loop as well.
	restTick = time.Second
	// probeEvery bounds the questions whether a node is gone, and those for earlier leaders.
	probeEvery = 100 * time.Millisecond
)

// ErrNotLeading is returned by Serve when this server does not lead.
var ErrNotLeading = errors.New("this server does not lead")

// Lead grants addresses in a term, until ctx ends. It is called after the term has begun.
func (l *Leader) Lead(ctx context.Context, term uint64) error {
	own := newLedger(l.config.Clock())
	l.mu.Lock()
	again := l.led == term
	l.term, l.ledger, l.led = term, own, term
	l.mu.Unlock()
	var probes sync.WaitGroup
	defer probes.Wait()
	defer l.end(own)
	// Lead is called twice in a term that goes on after a restore. Its own grants of before count
	// then, and Earlier knows nothing of this term.
	if l.config.Earlier != nil && !again {
		probes.Go(func() { l.bound(ctx, own, term) }) // ends with ctx, or when an earlier grant cannot last
	}
	probing := &probing{asked: map[string]time.Time{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		demands, partial, changed := l.config.Demands()
		next := l.look(own, demands, partial)
		for _, node := range next.probe {
			if probing.begin(node) {
				probes.Go(func() { // ends within a fraction of a second; Lead waits for it
					defer probing.end(node)
					l.probe(ctx, own, node)
				})
			}
		}
		rest := restTick
		if next.pending {
			rest = pendingTick
		}
		timer.Reset(rest)
		select {
		case <-timer.C:
		case <-changed:
		case <-l.kick:
		case <-ctx.Done():
			return nil
		}
	}
}

// look takes the demands and wakes nodes.
func (l *Leader) look(own *ledger, demands []Demand, partial bool) calls {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.config.Clock()
	own.demand(demands, partial)
	next := own.next(now)
	for _, id := range next.wake {
		own.woke(now, id)
		select {
		case l.visits[id].wake <- struct{}{}:
		default:
		}
	}
	return next
}

// bound finds out when the last grant of an earlier leader can have been made.
func (l *Leader) bound(ctx context.Context, own *ledger, term uint64) {
	for ctx.Err() == nil {
		since, err := l.config.Earlier(ctx, term)
		now := l.config.Clock() // after the answer: the proof was since ago or earlier
		l.mu.Lock()
		if err == nil {
			own.bound(now.Add(-since))
		}
		over := err == nil || now > own.earlierEnd()
		l.mu.Unlock()
		if over {
			l.stir()
			return
		}
		l.config.Logger.Debug("it is not known when an earlier leader last proved that it led", "err", err)
		select {
		case <-time.After(probeEvery):
		case <-ctx.Done():
		}
	}
}

// end closes the sessions of a term.
func (l *Leader) end(own *ledger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ledger == own {
		l.term, l.ledger = 0, nil
	}
	for id := range own.sessions {
		l.visits[id].link.Close() // Serve reports the end
	}
}

// probe asks whether a node is gone.
func (l *Leader) probe(ctx context.Context, own *ledger, node string) {
	asked := l.config.Clock()
	if !l.config.Gone(ctx, node) {
		return
	}
	l.config.Logger.Info("a node's process is gone: its addresses are free", "node", node)
	l.mu.Lock()
	own.gone(node, asked)
	l.mu.Unlock()
	l.stir()
}

// probing spaces the questions about each node.
type probing struct {
	mu    sync.Mutex
	asked map[string]time.Time // zero while a question is under way
}

func (p *probing) begin(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.asked[node]
	if known && (last.IsZero() || time.Since(last) < probeEvery) {
		return false
	}
	p.asked[node] = time.Time{}
	return true
}

func (p *probing) end(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[node] = time.Now()
}

func (l *Leader) stir() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Serve serves one session of an authenticated node, until the link or the term ends. It closes the
// link.
func (l *Leader) Serve(ctx context.Context, node string, link Link) error {
	defer link.Close()
	l.mu.Lock()
	if l.term == 0 {
		l.mu.Unlock()
		return ErrNotLeading
	}
	l.sessions++
	s := &serving{leader: l, node: node, link: link, term: l.term, ledger: l.ledger, id: l.sessions}
	wake := make(chan struct{}, 1)
	l.visits[s.id] = visit{wake, link}
	l.ledger.open(s.id, node)
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var waker sync.WaitGroup
	defer func() {
		cancel()
		link.Close()
		waker.Wait()
		l.mu.Lock()
		delete(l.visits, s.id)
		s.ledger.close(s.id)
		l.mu.Unlock()
		l.stir()
	}()
	if err := link.Send(Message{Kind: Hello, Term: s.term, Session: s.id}); err != nil {
		return err
	}
	waker.Go(func() { // ends with ctx, and at an error of the link
		for {
			select {
			case <-wake:
				if link.Send(Message{Kind: Wake}) != nil {
					link.Close()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		m, err := link.Receive()
		if err != nil {
			return err
		}
		if err := s.answer(ctx, m); err != nil {
			return err
		}
	}
}

// serving is an open session at the leader.
type serving struct {
	leader *Leader
	node   string
	link   Link
	term   uint64
	ledger *ledger
	id     uint64
}

var errStale = errors.New("the request is of an earlier session")

// answer answers one request.
func (s *serving) answer(ctx context.Context, m Message) error {
	l := s.leader
	arrived := l.config.Clock()
	if m.Kind != Request || m.Term != s.term || m.Session != s.id {
		return fmt.Errorf("%w: %q of term %d and session %d from %s", errMessage, m.Kind, m.Term, m.Session, s.node)
	}
	l.mu.Lock()
	unfounded, ok := s.ledger.hear(arrived, s.id, m.Held)
	due := s.ledger.due(arrived, s.node)
	l.mu.Unlock()
	if !ok {
		return errStale
	}
	l.unfounded(s.node, unfounded)
	l.stir()
	answer := Message{Kind: Answer, For: Duration}
	if due {
		if err := l.config.Confirm(ctx, s.term); err != nil {
			return fmt.Errorf("prove that this server leads: %w", err)
		}
		l.mu.Lock()
		granted, fresh := s.ledger.grant(arrived, s.id)
		l.mu.Unlock()
		answer.Granted = granted
		for _, addr := range fresh {
			l.config.Logger.Info("a node gets an address", "node", s.node, "address", addr)
			l.config.Granted(addr, s.node)
		}
	}
	return s.link.Send(answer)
}

// mostNamed bounds the addresses in a log line.
const mostNamed = 8

// unfounded notes addresses that a node claims without a grant. A message may have thousands, and
// the next one the same.
func (l *Leader) unfounded(node string, addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	if omitted, ok := l.lines.Take(node, time.Now()); ok {
		l.config.Logger.Error("a node answers for addresses that it was not granted", "node", node, "count", len(addrs),
			"addresses", addrs[:min(len(addrs), mostNamed)], "othersNotLogged", omitted)
	}
}

// Grants returns which node has which address, by this leader's grants; nothing while this server
// does not lead.
func (l *Leader) Grants() map[netip.Addr]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ledger == nil {
		return nil
	}
	now, out := l.config.Clock(), map[netip.Addr]string{}
	for addr, g := range l.ledger.grants {
		if now <= g.end {
			out[addr] = g.node
		}
	}
	return out
}
