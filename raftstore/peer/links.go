package peer

import (
	"context"
	"net"
	"sync"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
)

// clients are the links to the other servers.
type clients struct {
	peers *Peers
	// running has the goroutines of the links.
	running sync.WaitGroup

	mu     sync.Mutex
	byAddr map[string]*rpc.Client // by destination
	closed bool
}

func newClients(p *Peers) *clients {
	return &clients{peers: p, byAddr: make(map[string]*rpc.Client)}
}

// to returns the link to a destination.
func (c *clients) to(addr string) *rpc.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.byAddr[addr]
	if !ok {
		p := c.peers
		found = rpc.NewClient(rpc.ClientConfig{
			Running: &c.running, Patience: p.opts.CallTimeout / 2, Urgent: Urgent,
			Dial: func(ctx context.Context) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, p.opts.CallTimeout)
				defer cancel()
				conn, err := p.Dial(ctx, addr, ProtoStore)
				if err != nil {
					p.server.Refused(err)
				}
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
func (c *clients) keep(members []group.Member) {
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
