package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxPayload is the longest UDP answer, which fits into one packet; longer ones are truncated,
	// and clients repeat the question by TCP.
	maxPayload = 1232
	// maxQueries bounds the concurrent questions of all clients. Others are dropped: their clients
	// ask again.
	maxQueries = 4000
	// maxConnections bounds the TCP connections of all clients, maxConnectionsOfOne those of one
	// address.
	maxConnections      = 1000
	maxConnectionsOfOne = 250
	// tcpIdle bounds the wait for a client's next question, tcpWrite the wait for it to read an
	// answer.
	tcpIdle  = 8 * time.Second
	tcpWrite = 2 * time.Second
)

// serve answers at the address until ctx ends or a socket fails.
func (s *Server) serve(ctx context.Context, listening func()) error {
	at := s.config.Listen.String()
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	// With port 0, as in tests, both must have the same one. That of TCP is chosen first, because
	// ports of closed connections stay taken for a while.
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s.at.Store(packets.LocalAddr().(*net.UDPAddr))
	return s.serveOn(ctx, packets, listener, listening)
}

// serveOn is serve with the sockets, which it closes. No client keeps it from ending.
func (s *Server) serveOn(ctx context.Context, packets net.PacketConn, listener net.Listener, listening func()) error {
	answering, cancel := context.WithCancel(ctx)
	defer cancel()
	bounded := newBoundedListener(listener)
	ended := make(chan error, 2)
	servers := []*dns.Server{
		{PacketConn: packets, Handler: s.handler(answering, true)},
		{Listener: bounded, Handler: s.handler(answering, false), IdleTimeout: func() time.Duration { return tcpIdle }},
	}
	for _, one := range servers {
		go func() { ended <- one.ActivateAndServe() }() // ends with its socket and its clients' questions
	}
	listening()
	left := len(servers)
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
		left--
	}
	cancel()
	_ = packets.Close() // this ends both, also before their start
	_ = bounded.Close()
	for range left {
		if e := <-ended; ctx.Err() == nil {
			err = errors.Join(err, e)
		}
	}
	if ctx.Err() == nil && err == nil {
		err = errors.New("a socket was closed")
	}
	return err
}

// boundedListener limits the open connections; the next ones wait to be accepted. Excess
// connections of one source are closed. Close closes the connections too.
type boundedListener struct {
	net.Listener
	places  chan struct{}
	sources *limiter
	ctx     context.Context // ends with Close
	close   context.CancelFunc
}

func newBoundedListener(listener net.Listener) *boundedListener {
	l := &boundedListener{
		Listener: listener, places: make(chan struct{}, maxConnections),
		sources: newLimiter(maxConnections, maxConnectionsOfOne),
	}
	l.ctx, l.close = context.WithCancel(context.Background())
	return l
}

func (l *boundedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			<-l.places
			return nil, err
		}
		source := sourceOf(conn.RemoteAddr())
		if l.sources.enter(source) != nil {
			_ = conn.Close()
			continue
		}
		return &boundedConn{
			Conn: conn,
			// A connection accepted while the listener closes is closed at once.
			forget: context.AfterFunc(l.ctx, func() { _ = conn.Close() }),
			leave: sync.OnceFunc(func() {
				l.sources.leave(source)
				<-l.places
			}),
		}, nil
	}
}

func (l *boundedListener) Close() error {
	l.close()
	return l.Listener.Close()
}

// boundedConn is a connection of a boundedListener.
type boundedConn struct {
	net.Conn
	forget func() bool // the listener's end does not close it any more
	leave  func()
}

func (c *boundedConn) Close() error {
	defer c.leave()
	c.forget()
	return c.Conn.Close()
}

// Write gives up on a client that does not read: the library has no bound of its own.
func (c *boundedConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(tcpWrite)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// request is a client's message.
type request struct {
	*dns.Msg
	source netip.Addr
	udp    bool
}

func (s *Server) handler(ctx context.Context, udp bool) dns.HandlerFunc {
	return func(w dns.ResponseWriter, query *dns.Msg) {
		select {
		case s.places <- struct{}{}:
			defer func() { <-s.places }()
		default:
			return
		}
		if err := w.WriteMsg(
			s.safely(ctx, request{Msg: query, source: sourceOf(w.RemoteAddr()), udp: udp})); err != nil {
			// An answer that has no form on the wire is a failure, and not silence. Where the
			// client is gone, so is this.
			_ = w.WriteMsg(new(dns.Msg).SetRcode(query, dns.RcodeServerFailure))
		}
	}
}

// safely is reply with a failure in place of a panic: packets of any sender must not end a process
// that holds the cluster's data.
func (s *Server) safely(ctx context.Context, query request) (m *dns.Msg) {
	defer func() {
		if what := recover(); what != nil {
			s.config.Logger.Error("cluster DNS: a query cannot be answered; please report this",
				"question", query.Question, "panic", what, "stack", string(debug.Stack()))
			m = new(dns.Msg).SetRcode(query.Msg, dns.RcodeServerFailure)
		}
	}()
	return s.reply(ctx, query)
}

// reply makes the answer to a message that holds one question.
func (s *Server) reply(ctx context.Context, query request) *dns.Msg {
	m := new(dns.Msg).SetReply(query.Msg)
	m.RecursionAvailable, m.Compress = true, true
	size := dns.MinMsgSize
	opt := query.IsEdns0()
	if opt != nil {
		size = min(max(size, int(opt.UDPSize())), maxPayload)
		m.SetEdns0(maxPayload, opt.Do())
		if opt.Version() != 0 {
			m.Rcode = dns.RcodeBadVers
			return m
		}
	}
	if len(query.Question) != 1 {
		// The library trusts a header's count of questions.
		m.Rcode = dns.RcodeFormatError
		return m
	}
	asked := query.Question[0]
	switch {
	case asked.Qclass != dns.ClassINET || asked.Qtype == dns.TypeAXFR || asked.Qtype == dns.TypeIXFR:
		m.Rcode = dns.RcodeRefused
	case asked.Qtype == dns.TypeANY:
		// The least that is an answer (RFC 8482).
		m.Answer = []dns.RR{&dns.HINFO{
			Hdr: dns.RR_Header{Name: asked.Name, Rrtype: dns.TypeHINFO, Class: dns.ClassINET, Ttl: 3600},
			Cpu: "RFC8482",
		}}
	case s.guard.arrived(strings.ToLower(asked.Name)):
		m.Rcode = dns.RcodeNameError
	default:
		s.answer(ctx, query, m)
	}
	if !query.udp {
		size = dns.MaxMsgSize
	}
	m.Truncate(size)
	return m
}

func (s *Server) answer(ctx context.Context, query request, m *dns.Msg) {
	began := time.Now()
	found := s.resolver.resolve(ctx, query)
	s.metrics.answered(found, time.Since(began))
	m.Rcode, m.Authoritative = found.rcode, found.authoritative
	m.Answer, m.Ns = found.answer, found.ns
	opt := m.IsEdns0()
	m.AuthenticatedData = found.authentic && (query.AuthenticatedData || opt != nil && opt.Do())
	m.CheckingDisabled = query.CheckingDisabled
	m.Extra = append(found.rr, m.Extra...)
	if opt != nil && found.err != nil {
		opt.Option = append(opt.Option,
			&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeOther, ExtraText: found.err.Error()})
	}
	if found.err != nil {
		s.config.Logger.Debug("cluster DNS: no answer", "name", query.Question[0].Name, "type",
			dns.Type(query.Question[0].Qtype), "err", found.err)
	}
	if found.log {
		s.config.Logger.Info("cluster DNS", "name", query.Question[0].Name, "type",
			dns.Type(query.Question[0].Qtype).String(),
			"rcode", dns.RcodeToString[m.Rcode], "answers", len(m.Answer), "after", time.Since(began))
	}
}
