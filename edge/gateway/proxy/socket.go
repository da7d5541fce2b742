package proxy

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/edge/gateway/conns"
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
	queue *conns.Queue
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
		go to.port.greet(conns.Limited{Conn: s.proxy.open.Enter(conn), Patience: writePatience}, to.queue)
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
