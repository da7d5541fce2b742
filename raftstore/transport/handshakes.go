package transport

import (
	"net"
	"net/netip"
	"sync"
)

// door tracks the connections that are not authenticated yet. Any client may open one, so it bounds
// their number, per source and in total. It makes room by closing instead of waiting: it closes the
// oldest connection of the source with the most. A server that needs some milliseconds gets through
// beside any number of silent ones, and a flood from one source costs that source's own places.
type door struct {
	most, mostOfOne int

	mu     sync.Mutex
	closed bool
	count  int
	next   uint64
	from   map[netip.Addr][]*visitor // the oldest first
}

// visitor is a connection at the door.
type visitor struct {
	net.Conn
	source netip.Addr
	number uint64 // in the order of coming
	pushed bool   // closed to make room
}

func newDoor(most, mostOfOne int) *door {
	return &door{most: most, mostOfOne: mostOfOne, from: make(map[netip.Addr][]*visitor)}
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
// door is closed.
func (d *door) enter(conn net.Conn) *visitor {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := &visitor{Conn: conn, source: source(conn), number: d.next}
	d.next++
	if d.closed {
		conn.Close()
		return nil
	}
	d.from[v.source] = append(d.from[v.source], v)
	d.count++
	switch {
	case len(d.from[v.source]) > d.mostOfOne:
		d.push(v.source)
	case d.count > d.most:
		d.push(d.heaviest())
	}
	return v
}

// heaviest returns the source with the most connections; of several, the one with the oldest.
func (d *door) heaviest() netip.Addr {
	var (
		found    netip.Addr
		visitors []*visitor
	)
	for each, all := range d.from {
		if n := len(all) - len(visitors); n > 0 || n == 0 && all[0].number < visitors[0].number {
			found, visitors = each, all
		}
	}
	return found
}

// push closes the oldest connection of a source.
func (d *door) push(from netip.Addr) {
	oldest := d.from[from][0]
	oldest.pushed = true
	oldest.Close()
	d.remove(oldest)
}

// leave is called when a connection is authenticated, or closed. It reports whether it was closed
// to make room.
func (d *door) leave(v *visitor) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(v)
	return v.pushed
}

func (d *door) remove(v *visitor) {
	all := d.from[v.source]
	for i, each := range all {
		if each != v {
			continue
		}
		d.count--
		if len(all) == 1 {
			delete(d.from, v.source)
		} else {
			d.from[v.source] = append(all[:i:i], all[i+1:]...)
		}
		return
	}
}

// close closes all connections at the door, and later ones.
func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, all := range d.from {
		for _, v := range all {
			v.Close()
		}
	}
}
