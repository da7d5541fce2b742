package hold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

// NodeConfig of a Node. All but Logger are needed.
type NodeConfig struct {
	Holder *Holder
	// Dial opens a link to the present leader. over is closed when another leader is known; nil if
	// that is not known here.
	Dial func(ctx context.Context) (link Link, over <-chan struct{}, err error)
	// Clock is Boot, unless in tests. It is that of the Holder.
	Clock func() Instant
	// Pause lies between two attempts to get a session; each is a tenth longer than the one before,
	// up to a second. Default: 50 ms.
	Pause  time.Duration
	Logger *slog.Logger
}

// Node asks the leaders for addresses. Make it with NewNode and run it once.
type Node struct {
	config NodeConfig
	term   uint64        // the highest that this node has met
	pause  time.Duration // before the next attempt
}

// NewNode returns a Node that holds nothing yet.
func NewNode(c NodeConfig) *Node {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Pause == 0 {
		c.Pause = dialPause
	}
	return &Node{config: c, pause: c.Pause}
}

const (
	// dialPause is the default of NodeConfig.Pause, and longestPause the longest one. A leader of
	// an earlier version gives no session at all.
	dialPause, longestPause = 50 * time.Millisecond, time.Second
	// helloPatience bounds the wait for the first message of a session.
	helloPatience = Duration / 2
	// farewellPatience bounds the wait for a leader that is told that this node stops.
	farewellPatience = 200 * time.Millisecond
)

// Run asks until ctx ends. Then it drops all addresses, and says so to the leader.
func (n *Node) Run(ctx context.Context) error {
	defer n.config.Holder.Drop()
	said := ""
	for ctx.Err() == nil {
		err := n.session(ctx)
		if ctx.Err() != nil {
			break
		}
		if text := fmt.Sprint(err); text != said { // once for each reason
			n.config.Logger.Debug("the session for addresses has ended, and a new one is tried", "err", err)
			said = text
		}
		select {
		case <-time.After(n.pause):
		case <-ctx.Done():
		}
		n.pause = min(n.pause+n.pause/10, longestPause)
	}
	return nil
}

var (
	errOver    = errors.New("another leader is known")
	errSilent  = errors.New("the leader does not answer")
	errOldTerm = errors.New("the session is of an earlier term")
)

// session is one session. It has ended when session returns: no grant of it is taken any more.
func (n *Node) session(ctx context.Context) error {
	link, over, err := n.config.Dial(ctx)
	if err != nil {
		return err
	}
	defer link.Close()
	inbox := make(chan Message)
	done := make(chan struct{})
	defer close(done)
	failed := make(chan error, 1)
	go func() { // ends with the link
		for {
			m, err := link.Receive()
			if err != nil {
				failed <- err
				return
			}
			select {
			case inbox <- m:
			case <-done:
				return
			}
		}
	}()
	s := &asking{node: n, link: link, inbox: inbox, failed: failed, over: over}
	hello, err := s.receive(ctx, helloPatience)
	switch {
	case err != nil:
		return err
	case hello.Kind != Hello:
		return fmt.Errorf("%w: %q in place of a hello", errMessage, hello.Kind)
	case hello.Term < n.term:
		return fmt.Errorf("%w: %d, and this node has met %d", errOldTerm, hello.Term, n.term)
	}
	n.term, n.pause, s.hello = hello.Term, n.config.Pause, hello
	err = s.renew(ctx)
	if ctx.Err() != nil {
		n.config.Holder.Drop()
		// The answer means that the leader has taken note.
		if _, err := s.ask(context.WithoutCancel(ctx), farewellPatience); err != nil {
			n.config.Logger.Debug("the leader has not heard that this node stops", "err", err)
		}
	}
	return err
}

// asking is an open session at a node.
type asking struct {
	node   *Node
	link   Link
	inbox  <-chan Message
	failed <-chan error
	over   <-chan struct{}
	hello  Message
	woken  bool // the leader wants a request
}

// renew repeats requests until the session fails or ctx ends.
func (s *asking) renew(ctx context.Context) error {
	for {
		dropped, err := s.ask(ctx, Duration)
		if err != nil {
			return err
		}
		if s.woken || dropped {
			continue
		}
		pause := Idle
		if len(s.node.config.Holder.addrs()) > 0 {
			pause = Renewal
		}
		switch m, err := s.receive(ctx, pause); {
		case errors.Is(err, errSilent): // it is time
		case err != nil:
			return err
		case m.Kind != Wake:
			return fmt.Errorf("%w: %q without a request", errMessage, m.Kind)
		}
	}
}

// ask makes one request and takes its answer. dropped reports whether an address was given up: the
// leader waits to hear of it.
func (s *asking) ask(ctx context.Context, patience time.Duration) (dropped bool, err error) {
	holder := s.node.config.Holder
	sent := s.node.config.Clock()
	held := holder.addrs()
	s.woken = false
	if err := s.link.Send(
		Message{Kind: Request, Term: s.hello.Term, Session: s.hello.Session, Held: held}); err != nil {
		return false, err
	}
	for {
		m, err := s.receive(ctx, patience)
		switch {
		case err != nil:
			return false, err
		case m.Kind == Wake:
			s.woken = true
			continue
		case m.Kind != Answer:
			return false, fmt.Errorf("%w: %q in place of an answer", errMessage, m.Kind)
		}
		holder.take(m.Granted, sent.Add(m.For))
		return slices.ContainsFunc(held, func(a netip.Addr) bool { return !slices.Contains(m.Granted, a) }), nil
	}
}

// receive waits for a message. The error is errSilent when none comes in time.
func (s *asking) receive(ctx context.Context, patience time.Duration) (Message, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case m := <-s.inbox:
		return m, nil
	case err := <-s.failed:
		return Message{}, err
	case <-s.over:
		return Message{}, errOver
	case <-timer.C:
		return Message{}, errSilent
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	}
}
