package rpc

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// ClientConfig of a Client.
type ClientConfig struct {
	// Dial opens a connection to the peer, and verifies its identity.
	Dial func(ctx context.Context) (net.Conn, error)
	// Running has the goroutines of the links. They end with Close.
	Running *sync.WaitGroup
	// Patience is how long the peer may be silent while it owes an answer, before the link to it is
	// severed.
	Patience time.Duration
	Urgent   Urgent
}

// Client calls one peer, over one link that it opens when it is needed.
type Client struct {
	cfg ClientConfig

	mu      sync.Mutex
	link    *Link
	dialing chan struct{} // closed when the dial under way is over
	next    uint64
	waiting map[uint64]chan Frame
	closed  bool
}

// NewClient returns a client without an open link.
func NewClient(cfg ClientConfig) *Client {
	return &Client{cfg: cfg, waiting: make(map[uint64]chan Frame)}
}

// Call sends a request and waits for the answer. The error wraps ErrNotSent when the peer has
// certainly not got it.
func (c *Client) Call(ctx context.Context, kind byte, payload []byte) (Frame, error) {
	return c.CallUntil(ctx, nil, nil, kind, payload)
}

// CallUntil is Call, but waits for the answer no longer than until over is closed, and fails with
// why then.
func (c *Client) CallUntil(
	ctx context.Context, over <-chan struct{}, why error, kind byte, payload []byte,
) (Frame, error) {
	if len(payload) > MaxPayload {
		return Frame{}, ErrTooLarge
	}
	l, err := c.Connect(ctx)
	if err != nil {
		return Frame{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	id, answer := c.expect()
	defer c.forget(id)
	if err := l.sendAs(ctx, c.cfg.Urgent, kind, Frame{Call: id, Kind: kind, Payload: payload}); err != nil {
		return Frame{}, err
	}
	select {
	case f, ok := <-answer:
		if !ok {
			return Frame{}, io.ErrUnexpectedEOF
		}
		return f, nil
	case <-l.done:
		return Frame{}, io.ErrUnexpectedEOF
	case <-over:
		return Frame{}, why
	case <-ctx.Done():
		return Frame{}, context.Cause(ctx)
	}
}

func (c *Client) expect() (uint64, <-chan Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	answer := make(chan Frame, 1)
	c.waiting[c.next] = answer
	return c.next, answer
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *Client) deliver(f Frame) {
	c.mu.Lock()
	answer, ok := c.waiting[f.Call]
	delete(c.waiting, f.Call)
	c.mu.Unlock()
	if ok {
		answer <- f
	}
}

// Connect returns the link, which it opens if there is none. One caller dials, others wait for it.
func (c *Client) Connect(ctx context.Context) (*Link, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, net.ErrClosed
		}
		if l := c.link; l != nil {
			select {
			case <-l.done:
				c.link = nil
			default:
				c.mu.Unlock()
				return l, nil
			}
		}
		if other := c.dialing; other != nil {
			c.mu.Unlock()
			select {
			case <-other:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		mine := make(chan struct{})
		c.dialing = mine
		c.mu.Unlock()
		return c.open(ctx, mine)
	}
}

func (c *Client) open(ctx context.Context, dialed chan struct{}) (*Link, error) {
	conn, err := c.cfg.Dial(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialing = nil
	close(dialed)
	if err != nil {
		return nil, err
	}
	l := newLink(conn)
	if c.closed {
		l.sever()
		return nil, net.ErrClosed
	}
	c.link = l
	c.cfg.Running.Go(l.write) // all end when the link breaks, which close does
	c.cfg.Running.Go(func() { l.read(c.deliver) })
	c.cfg.Running.Go(func() { c.listen(l) })
	return l, nil
}

// listen severs the link if the peer owes an answer and is silent for too long, even to a ping. A
// partitioned peer, or one whose machine is gone, breaks no connection. A write that waits for it
// would not be repeated at the next leader. After the network has healed, the connection could stay
// stuck until the kernel's next retransmission.
//
// It ends with the link.
func (c *Client) listen(l *Link) {
	ticker := time.NewTicker(c.cfg.Patience / 4)
	defer ticker.Stop()
	owed := time.Duration(0) // how long an answer has been owed, by the ticks
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		switch quiet := l.quiet(); {
		case !c.waits():
			owed = 0
			continue
		case owed >= c.cfg.Patience && quiet >= c.cfg.Patience:
			l.sever()
			return
		case quiet >= c.cfg.Patience/4:
			l.Ping()
		}
		owed += c.cfg.Patience / 4
	}
}

// Current returns the open link, nil without one.
func (c *Client) Current() *Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil
	}
	select {
	case <-c.link.done:
		return nil
	default:
		return c.link
	}
}

func (c *Client) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0
}

// Close severs the link. No other one is opened any more.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.link != nil {
		c.link.sever()
	}
}
