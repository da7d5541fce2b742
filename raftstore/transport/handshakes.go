package transport

import (
	"net"
	"net/netip"
	"sync"
)

// handshakes tracks the connections that are not authenticated yet. Any client may open one, so it
// bounds their number, per source and in total. It makes room by closing instead of waiting: it
// closes the oldest connection of the source with the most. A server that needs some milliseconds
// gets through beside any number of silent ones, and a flood from one source costs that source's
// own places.
type handshakes struct {
	most, mostOfOne int

	mu     sync.Mutex
	closed bool
	count  int
	next   uint64
	from   map[netip.Addr][]*pending // the oldest first
}

// pending is a connection that is not authenticated yet.
type pending struct {
	net.Conn
	source netip.Addr
	number uint64 // in the order of coming
	pushed bool   // closed to make room
}

func newHandshakes(most, mostOfOne int) *handshakes {
	return &handshakes{most: most, mostOfOne: mostOfOne, from: make(map[netip.Addr][]*pending)}
}

// source is the part of a connection's address that an attacker cannot choose: an IPv4 address, or
// the 64 bits of the network of an IPv6 address.
func source(conn net.Conn) netip.Addr {
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{} // no TCP: all are one source
	}
	addr := remote.Addr().Unmap().WithZone("")
	if addr.Is6() {
		if network, err := addr.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return addr
}

// enter admits a connection, and closes another one if there are too many. It returns nil when the
// Mux is closed.
func (h *handshakes) enter(conn net.Conn) *pending {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &pending{Conn: conn, source: source(conn), number: h.next}
	h.next++
	if h.closed {
		conn.Close()
		return nil
	}
	h.from[p.source] = append(h.from[p.source], p)
	h.count++
	switch {
	case len(h.from[p.source]) > h.mostOfOne:
		h.push(p.source)
	case h.count > h.most:
		h.push(h.heaviest())
	}
	return p
}

// heaviest returns the source with the most connections; of several, the one with the oldest.
func (h *handshakes) heaviest() netip.Addr {
	var (
		found netip.Addr
		conns []*pending
	)
	for each, all := range h.from {
		if n := len(all) - len(conns); n > 0 || n == 0 && all[0].number < conns[0].number {
			found, conns = each, all
		}
	}
	return found
}

// push closes the oldest connection of a source.
func (h *handshakes) push(from netip.Addr) {
	oldest := h.from[from][0]
	oldest.pushed = true
	oldest.Close()
	h.remove(oldest)
}

// leave is called when a connection is authenticated, or closed. It reports whether it was closed
// to make room.
func (h *handshakes) leave(p *pending) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(p)
	return p.pushed
}

func (h *handshakes) remove(p *pending) {
	all := h.from[p.source]
	for i, each := range all {
		if each != p {
			continue
		}
		h.count--
		if len(all) == 1 {
			delete(h.from, p.source)
		} else {
			h.from[p.source] = append(all[:i:i], all[i+1:]...)
		}
		return
	}
}

// close closes all pending connections, and later ones.
func (h *handshakes) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, all := range h.from {
		for _, p := range all {
			p.Close()
		}
	}
}
