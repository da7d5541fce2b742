// Package memnet is a network in memory, for tests: whole clusters in one process, in virtual time
// if needed. It has the faults of a network between machines: cuts, packets dropped in one
// direction or both, delays, and connections that break.
//
// Invariants: a connection delivers the written bytes in order and once, or breaks, as TCP does.
// Between connections nothing is ordered. A writer of more than the window waits for the reader.
package memnet

import (
	"sync"
	"time"
)

// Network connects hosts by their addresses. The zero value is ready.
type Network struct {
	mu      sync.Mutex
	hosts   map[string]*Host
	cut     map[[2]string]bool // by the two addresses, in order
	blocked map[[2]string]bool // by from and to
	refused map[string]bool
	opened  chan struct{} // closed and replaced when a block is taken back
	delay   func(from, to string, bytes int) time.Duration
	conns   map[*conn]struct{}
	gone    map[string]bool // hosts that vanished
}

// Host returns a host at the address. It replaces a closed one, and breaks the connections of a
// vanished one.
func (n *Network) Host(addr string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts == nil {
		n.hosts = make(map[string]*Host)
		n.cut = make(map[[2]string]bool)
		n.blocked = make(map[[2]string]bool)
		n.refused = make(map[string]bool)
		n.opened = make(chan struct{})
		n.conns = make(map[*conn]struct{})
		n.gone = make(map[string]bool)
	}
	if n.gone[addr] {
		delete(n.gone, addr)
		n.resetAll(addr)
	}
	h := &Host{net: n, addr: addr, listeners: make(map[string]*listener)}
	n.hosts[addr] = h
	return h
}

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// Cut separates two hosts: their connections break, and new ones do not come about.
func (n *Network) Cut(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[pair(a, b)] = true
	n.reset(a, b)
}

// Reset breaks the connections between two hosts, which may open new ones at once.
func (n *Network) Reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reset(a, b)
}

func (n *Network) reset(a, b string) {
	for c := range n.conns {
		if pair(c.in.from, c.in.to) == pair(a, b) {
			c.abort()
			delete(n.conns, c)
		}
	}
}

func (n *Network) resetAll(addr string) {
	for c := range n.conns {
		if c.in.to == addr || c.out.to == addr {
			c.abort()
			delete(n.conns, c)
		}
	}
}

// Isolate cuts a host off from all others.
func (n *Network) Isolate(addr string) {
	for _, other := range n.others(addr) {
		n.Cut(addr, other)
	}
}

func (n *Network) others(addr string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var others []string
	for other := range n.hosts {
		if other != addr {
			others = append(others, other)
		}
	}
	return others
}

// Block drops the packets in one direction: connections stay, and their bytes arrive after Unblock
// or Heal. New connections fail in both directions.
func (n *Network) Block(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.blocked[[2]string{from, to}] = true
}

// Unblock takes back a Block.
func (n *Network) Unblock(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.blocked, [2]string{from, to})
	n.open()
}

// Mute separates a host from all others as a network does that drops packets: a Block in both
// directions.
func (n *Network) Mute(addr string) {
	for _, other := range n.others(addr) {
		n.Block(addr, other)
		n.Block(other, addr)
	}
}

// Refuse makes a host refuse new connections, like a closed port. Open ones stay.
func (n *Network) Refuse(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[addr] = true
}

func (n *Network) refuses(addr string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refused[addr]
}

// Heal takes back all cuts, blocks and refusals. Delays stay.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.refused)
	clear(n.cut)
	clear(n.blocked)
	n.open()
}

// open wakes all that waits behind a block. It is called with the lock held.
func (n *Network) open() {
	if n.opened != nil {
		close(n.opened)
	}
	n.opened = make(chan struct{})
}

// Delay sets the delay of each write. A lost packet is a long delay: it is retransmitted, and
// everything behind it on its connection waits. f is called by many goroutines; nil ends all
// delays.
func (n *Network) Delay(f func(from, to string, bytes int) time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = f
}

func (n *Network) travel(from, to string, bytes int) time.Duration {
	n.mu.Lock()
	delay := n.delay
	n.mu.Unlock()
	if delay == nil {
		return 0
	}
	return delay(from, to, bytes)
}

// held returns the channel to wait for while packets in this direction are dropped, else nil.
func (n *Network) held(from, to string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.blocked[[2]string{from, to}] {
		return n.opened
	}
	return nil
}

// reachable reports whether connections between the two come about.
func (n *Network) reachable(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.gone[b] && !n.cut[pair(a, b)] && !n.blocked[[2]string{a, b}] && !n.blocked[[2]string{b, a}]
}
