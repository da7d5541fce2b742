package dns

import (
	"net"
	"net/netip"
	"sync"
)

// limiter bounds concurrent use, by all sources together and by each of them.
type limiter struct {
	all, each int

	mu   sync.Mutex
	used int
	by   map[netip.Addr]int // only of sources that use something
}

func newLimiter(all, each int) *limiter {
	return &limiter{all: all, each: each, by: map[netip.Addr]int{}}
}

// enter takes a place, which leave gives back, or returns errTooMany or errTooManyOfOne.
func (l *limiter) enter(source netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.by[source] >= l.each:
		return errTooManyOfOne
	case l.used >= l.all:
		return errTooMany
	}
	l.used++
	l.by[source]++
	return nil
}

func (l *limiter) leave(source netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used--
	if l.by[source]--; l.by[source] == 0 {
		delete(l.by, source)
	}
}

// sourceOf returns a client's address. Clients without an IP address count as one.
func sourceOf(client net.Addr) netip.Addr {
	at, ok := client.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.Addr{}
	}
	return at.AddrPort().Addr().Unmap()
}
