package liveness

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/barque/barque/membership/gossip"
)

// Processes knows which members have no process any more. A member listens for gossip for longer
// than it answers for addresses. So where the kernel at its address refuses connections to that
// port, nobody answers there. Silence proves nothing: a machine may be cut off, or stopped.
//
// A firewall that refuses in a machine's name looks the same. So a refusal counts only where this
// server was connected before, and twice in a row.
type Processes struct {
	pool interface {
		Members() []gossip.Member
		Member(name string) (gossip.Member, bool)
		Changed() <-chan struct{}
	}
	self string

	mu  sync.Mutex
	met map[string]netip.AddrPort // where each member has accepted a connection of this server
}

// NewProcesses returns a Processes, which learns while it runs. self is this server's name.
func NewProcesses(pool *gossip.Pool, self string) *Processes {
	return &Processes{pool: pool, self: self, met: map[string]netip.AddrPort{}}
}

const (
	// connectPatience bounds one attempt to connect. A refusal takes a round trip.
	connectPatience = 300 * time.Millisecond
	// refusedPause lies between two refusals that count.
	refusedPause = 20 * time.Millisecond
	// meetAgain is the pause before a member is tried again that has not accepted.
	meetAgain = 5 * time.Second
)

// Run connects once with each living member, at each of its addresses, until ctx ends.
func (p *Processes) Run(ctx context.Context) error {
	for {
		changed := p.pool.Changed()
		missing := false
		for _, m := range p.pool.Members() {
			if m.Name == p.self || m.State != gossip.Alive || p.knows(m) {
				continue
			}
			if err := connect(ctx, m.Addr); err != nil {
				missing = true
				continue
			}
			p.mu.Lock()
			p.met[m.Name] = m.Addr
			p.mu.Unlock()
		}
		again := time.NewTimer(meetAgain)
		if !missing {
			again.Stop()
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil
		}
		again.Stop()
	}
}

func (p *Processes) knows(m gossip.Member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met[m.Name] == m.Addr
}

// Gone reports whether a member's process is gone for certain.
func (p *Processes) Gone(ctx context.Context, name string) bool {
	m, ok := p.pool.Member(name)
	if !ok || !p.knows(m) || !refused(ctx, m.Addr) {
		return false
	}
	select {
	case <-time.After(refusedPause):
	case <-ctx.Done():
	}
	return refused(ctx, m.Addr)
}

func refused(ctx context.Context, addr netip.AddrPort) bool {
	return errors.Is(connect(ctx, addr), syscall.ECONNREFUSED)
}

// connect opens a connection and closes it.
func connect(ctx context.Context, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	return conn.Close()
}
