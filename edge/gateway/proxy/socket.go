package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is an open port of this machine.
type socket struct {
	proxy    *Proxy
	listener net.Listener
	// ports are those of the number, by address; nil for one that is not open.
	ports atomic.Pointer[map[netip.Addr]*opened]
	done  sync.WaitGroup // of accept
	// unknown is set when the kernel does not say what a client has asked for.
	unknown atomic.Bool
}

// opened is a port with its queue.
type opened struct {
	port  *port
	queue *queue
}

// listen opens a port of this machine unless it is open. The caller holds mu.
func (p *Proxy) listen(number uint16) {
	if p.sockets[number] != nil {
		return
	}
	listener, err := p.config.Listen(number)
	if err != nil {
		if !p.refused[number] {
			p.refused[number] = true
			p.config.Refused(number, err)
		}
		return
	}
	delete(p.refused, number)
	s := &socket{proxy: p, listener: listener}
	s.ports.Store(&map[netip.Addr]*opened{})
	p.sockets[number] = s
	s.done.Go(s.accept) // ends when the listener is closed
}

// dispatch makes each socket know its ports. The caller holds mu.
func (p *Proxy) dispatch() {
	for number, s := range p.sockets {
		ports := map[netip.Addr]*opened{}
		for at, of := range p.ports {
			if at.Port() != number {
				continue
			}
			if ports[at.Addr()] = nil; of.server != nil {
				ports[at.Addr()] = &opened{of, of.queue}
			}
		}
		s.ports.Store(&ports)
	}
}

// tell calls Open, if the served addresses have changed. The caller holds mu.
func (p *Proxy) tell() {
	var served []netip.AddrPort
	for at, of := range p.ports {
		if at.Addr().IsValid() && of.server != nil {
			served = append(served, at)
		}
	}
	slices.SortFunc(served, netip.AddrPort.Compare)
	if !slices.Equal(served, p.served) {
		p.served = served
		p.config.Open(served)
	}
}

func (s *socket) close() { _ = s.listener.Close() }

// accept takes connections until the socket is closed.
func (s *socket) accept() {
	var wait time.Duration
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			pause := time.NewTimer(wait)
			<-pause.C
			continue
		}
		wait = 0
		to := s.open(conn)
		if to == nil {
			_ = conn.Close()
			continue
		}
		// Ends with the connection's greeting, which is limited in time, or with its stream.
		go to.port.greet(client{s.proxy.open.Enter(conn)}, to.queue)
	}
}

// open returns the port that a client has asked for; nil if it is not open. A connection that
// somebody else has led here, such as a Service with the node as its endpoint, is for the nodes'
// own addresses.
func (s *socket) open(conn net.Conn) *opened {
	ports := *s.ports.Load()
	if of := ports[netip.Addr{}]; of != nil && len(ports) == 1 {
		return of
	}
	addr, err := s.proxy.config.Asked(conn)
	if err != nil {
		if !s.unknown.Swap(true) {
			s.proxy.config.Logger.Error("the gateway closes connections to a port that has addresses of Gateways",
				"port", conn.LocalAddr(), "err", err)
		}
		return nil
	}
	s.unknown.Store(false)
	if of, known := ports[addr]; known {
		return of
	}
	return ports[netip.Addr{}]
}

// asked asks the kernel for the address that a client's packets had before they were led here; it
// is the socket's own where nobody has led them.
func asked(conn net.Conn) (netip.Addr, error) {
	own := addrOf(conn.LocalAddr()).Addr()
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return own, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return own, err
	}
	var addr netip.Addr
	var failed error
	err = raw.Control(func(fd uintptr) {
		if own.Is4() {
			addr, failed = asked4(int(fd))
		} else {
			addr, failed = asked6(int(fd))
		}
	})
	switch {
	case errors.Is(failed, unix.ENOENT): // no packet of it has been translated
		return own, nil
	case failed != nil:
		family := "IPv4"
		if !own.Is4() {
			family = "IPv6"
		}
		return own, fmt.Errorf("this kernel does not tell the address that a client has asked for (SO_ORIGINAL_DST of "+
			"%s): it needs connection tracking (nf_conntrack) of this family: %w", family, failed)
	}
	return addr, err
}

// asked4 reads a sockaddr_in: family, port, address. Only the type of this call's result is long
// enough for it.
func asked4(fd int) (netip.Addr, error) {
	m, err := unix.GetsockoptIPv6Mreq(fd, unix.IPPROTO_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), nil
}

// asked6 reads a sockaddr_in6, with which the result of this call begins.
func asked6(fd int) (netip.Addr, error) {
	// linux/netfilter_ipv6/ip6_tables.h
	const originalDestination = 80
	m, err := unix.GetsockoptIPv6MTUInfo(fd, unix.IPPROTO_IPV6, originalDestination)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.AddrFrom16(m.Addr.Addr), nil
}
