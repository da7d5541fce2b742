package transport

import (
	"crypto/tls"
	"maps"
	"slices"
	"sync"
)

// hosts are the open connections that this server has dialed.
type hosts struct {
	mu   sync.Mutex
	open map[*host]struct{}
}

// host is one of them.
type host struct {
	*tls.Conn
	in *hosts
}

func (h *hosts) add(conn *tls.Conn) *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = make(map[*host]struct{})
	}
	added := &host{conn, h}
	h.open[added] = struct{}{}
	return added
}

// all returns the open connections.
func (h *hosts) all() []*host {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.open))
}

// Close implements net.Conn.
func (h *host) Close() error {
	h.in.mu.Lock()
	delete(h.in.open, h)
	h.in.mu.Unlock()
	return h.Conn.Close()
}
