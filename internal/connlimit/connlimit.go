// Package connlimit bounds the connections of clients that have not authenticated yet. Anybody who
// reaches a port can open one, so their number is bounded, per source and in total.
//
// Room is made by closing instead of waiting or refusing: the oldest connection of the source with
// the most is closed. A client that authenticates at once gets through beside any number of silent
// ones, and a flood from one source costs that source's own places. Authenticated connections are
// not counted.
//
// What such clients have sent is bounded, too: a slow client may send a header of a megabyte, which
// its server keeps until the end of the header. The fullest connection of the source with the most
// bytes is closed.
package connlimit

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/barque/barque/internal/loglimit"
	"github.com/barque/barque/internal/logline"
)

// Limits of a listener.
type Limits struct {
	// Total bounds the connections without credentials, PerSource those of one source: an IPv4
	// address, or an IPv6 network of 64 bits. 0 means the default.
	Total, PerSource int
	// Exempt are sources that PerSource does not bound, such as a load balancer. Loopback is one
	// always.
	Exempt []netip.Prefix
	// Bytes bounds what all connections without credentials have sent, until Consumed is called. 0
	// means the default, and none where Settled or Anonymous is set: such a listener passes bytes
	// on.
	Bytes int64
	// Settled is the age at which a connection is counted no longer, for listeners that do not
	// authenticate. 0 is never.
	Settled time.Duration
	// Anonymous is set for listeners that do not authenticate, and count a connection until its
	// end.
	Anonymous bool
}

// passesOn reports whether nobody says which client has authenticated.
func (l Limits) passesOn() bool { return l.Anonymous || l.Settled > 0 }

// DefaultTotal and DefaultPerSource are the default limits. A connection takes some 50 KiB, and up
// to three times what it has sent.
const DefaultTotal, DefaultPerSource = 1000, 250

// The default of Bytes: so much of each connection, and leastBytes at least. A handshake and a
// request take some kilobytes, and a long header some more.
const (
	bytesEach  = 32 << 10
	leastBytes = 32 << 20
)

// Completed returns the limits with defaults.
func (l Limits) Completed() Limits {
	if l.Total <= 0 {
		l.Total = DefaultTotal
	}
	if l.PerSource <= 0 {
		l.PerSource = min(DefaultPerSource, l.Total)
	}
	if l.Bytes <= 0 && !l.passesOn() {
		l.Bytes = max(leastBytes, bytesEach*int64(l.Total))
	}
	return l
}

// Limiter counts connections. Several listeners may share one.
type Limiter struct {
	limits Limits
	logger *slog.Logger
	lines  loglimit.Limiter

	mu    sync.Mutex
	count int
	held  int64 // bytes of the counted connections
	next  uint64
	from  map[netip.Addr][]*Conn // the oldest first
}

// New returns a Limiter, which logs when it closes connections.
func New(limits Limits, logger *slog.Logger) *Limiter {
	return &Limiter{limits: limits.Completed(), logger: logger, from: map[netip.Addr][]*Conn{}}
}

// Listen returns the listener with limits.
func (l *Limiter) Listen(plain net.Listener) net.Listener { return &listener{plain, l} }

type listener struct {
	net.Listener
	limiter *Limiter
}

// Accept implements net.Listener. The connection is a *Conn.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limiter.Enter(conn), nil
}

// Conn is a connection that is counted until it is authenticated, settled or closed.
type Conn struct {
	net.Conn
	limiter *Limiter
	source  netip.Addr
	number  uint64 // in the order of coming
	settled *time.Timer

	// Guarded by the limiter's mu:
	counted, closed bool
	held            int64 // bytes that were read, and not consumed yet

	authenticated atomic.Bool
}

// Source returns the part of an address that an attacker cannot choose freely: an IPv4 address, or
// the network of 64 bits of an IPv6 address.
func Source(remote net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return netip.Addr{} // no TCP: all are one source
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() && !addr.IsLoopback() {
		if network, err := addr.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return addr
}

// Enter counts a connection, and closes another one if there are too many.
func (l *Limiter) Enter(conn net.Conn) *Conn {
	c := &Conn{Conn: conn, limiter: l, source: Source(conn.RemoteAddr())}
	l.mu.Lock()
	c.number = l.next
	l.next++
	surplus := l.add(c)
	if l.limits.Settled > 0 {
		c.settled = time.AfterFunc(l.limits.Settled, func() { l.leave(c) }) // Close stops it
	}
	l.mu.Unlock()
	l.end(surplus)
	return c
}

// add counts a connection, in its place by age. It returns the connection that is one too many and
// is to be closed, which may be the same, or nil. The caller holds mu.
func (l *Limiter) add(c *Conn) (surplus *Conn) {
	all := l.from[c.source]
	at, _ := slices.BinarySearchFunc(all, c.number,
		func(c *Conn, number uint64) int { return cmp.Compare(c.number, number) })
	l.from[c.source] = slices.Insert(all, at, c)
	l.count++
	c.counted = true
	switch {
	case l.count > l.limits.Total:
		surplus = l.surplus(l.heaviest(), c)
	case len(l.from[c.source]) > l.limits.PerSource && !l.exempt(c.source):
		surplus = l.surplus(c.source, c)
	}
	if surplus != nil {
		l.remove(surplus)
	}
	return surplus
}

// end closes a surplus connection, if there is one.
func (l *Limiter) end(surplus *Conn) {
	if surplus != nil {
		_ = surplus.Conn.Close() // its owner reads the end
		if l.limits.Anonymous {
			l.say("closed a connection of a source, because too many are open", surplus.source)
		} else {
			l.say("closed a connection of a source, because too many clients have not authenticated", surplus.source)
		}
	}
}

// take counts bytes that a connection has sent, and closes others that have sent more.
func (l *Limiter) take(c *Conn, n int) {
	var full []*Conn
	l.mu.Lock()
	if c.counted {
		c.held += int64(n)
		l.held += int64(n)
	}
	for l.held > l.limits.Bytes {
		fullest := l.fullest()
		l.remove(fullest)
		full = append(full, fullest)
	}
	l.mu.Unlock()
	for _, c := range full {
		_ = c.Conn.Close() // its owner reads the end
		l.say("closed a connection of a source, because clients that have not authenticated have sent too much",
			c.source)
	}
}

// fullest returns the connection with the most bytes of the source with the most. The caller holds
// mu, and some connection has bytes.
func (l *Limiter) fullest() (found *Conn) {
	most := int64(-1)
	for _, all := range l.from {
		sum, first := int64(0), all[0]
		for _, c := range all {
			sum += c.held
			if c.held > first.held {
				first = c
			}
		}
		if sum > most {
			found, most = first, sum
		}
	}
	return found
}

// surplus returns the connection of a source that is closed when there is one too many: the oldest,
// as it has had the most time to authenticate. Where nobody says who has authenticated, the oldest
// may be a client's, so a newcomer of that source goes. The caller holds mu.
func (l *Limiter) surplus(source netip.Addr, newcomer *Conn) *Conn {
	if l.limits.passesOn() && source == newcomer.source {
		return newcomer
	}
	return l.from[source][0]
}

func (l *Limiter) say(what string, source netip.Addr) {
	omitted, ok := l.lines.Take(time.Now())
	if !ok {
		return
	}
	logline.Log(l.logger, slog.LevelWarn, what, "source", source, "limit", l.limits.Total,
		"limitOfOneSource", l.limits.PerSource, "limitOfBytes", l.limits.Bytes, "othersNotLogged", omitted)
}

func (l *Limiter) exempt(source netip.Addr) bool {
	return source.IsLoopback() ||
		slices.ContainsFunc(l.limits.Exempt, func(p netip.Prefix) bool { return p.Contains(source) })
}

// heaviest returns the source with the most connections; of several, the one with the oldest.
func (l *Limiter) heaviest() netip.Addr {
	var found netip.Addr
	var conns []*Conn
	for source, all := range l.from {
		if n := len(all) - len(conns); n > 0 || n == 0 && all[0].number < conns[0].number {
			found, conns = source, all
		}
	}
	return found
}

// remove stops to count a connection, and reports whether it was counted. The caller holds mu.
func (l *Limiter) remove(c *Conn) bool {
	all := l.from[c.source]
	i := slices.Index(all, c)
	if i < 0 {
		return false
	}
	l.count--
	l.held -= c.held
	c.counted, c.held = false, 0
	if len(all) == 1 {
		delete(l.from, c.source)
	} else {
		l.from[c.source] = slices.Delete(all, i, i+1)
	}
	return true
}

func (l *Limiter) leave(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drop(c)
}

// drop stops to count a connection, and its timer. The caller holds mu.
func (l *Limiter) drop(c *Conn) bool {
	if c.settled != nil {
		c.settled.Stop()
	}
	return l.remove(c)
}

// Count returns the number of counted connections.
func (l *Limiter) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Held returns the number of bytes that counted connections have sent, and that are not consumed.
func (l *Limiter) Held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.limiter.limits.Bytes > 0 && !c.Authenticated() {
		c.limiter.take(c, n)
	}
	return n, err
}

// Consumed says that what the connection has sent so far takes no memory any more.
func (c *Conn) Consumed() {
	if c.Authenticated() {
		return
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.limiter.held -= c.held
	c.held = 0
}

// Authenticate marks a connection as that of a known client: it is counted no longer.
func (c *Conn) Authenticate() {
	if c.Authenticated() {
		return
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if !c.authenticated.Swap(true) {
		c.limiter.drop(c)
	}
}

// Estrange takes Authenticate back: the client is not known any more, and the connection is counted
// again.
func (c *Conn) Estrange() {
	if !c.Authenticated() {
		return
	}
	c.limiter.mu.Lock()
	var surplus *Conn
	if !c.closed && c.authenticated.Swap(false) {
		surplus = c.limiter.add(c)
	}
	c.limiter.mu.Unlock()
	c.limiter.end(surplus)
}

// Authenticated reports whether Authenticate was called, and Estrange was not since.
func (c *Conn) Authenticated() bool { return c.authenticated.Load() }

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.limiter.mu.Lock()
	c.closed = true
	c.limiter.drop(c)
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends the output, as a TCP connection does.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close the output of a %T: %w", c.Conn, syscall.EOPNOTSUPP)
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, fmt.Errorf("the kernel's connection of a %T: %w", c.Conn, syscall.EOPNOTSUPP)
}
