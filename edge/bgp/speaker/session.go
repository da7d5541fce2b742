package speaker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// openPatience bounds the wait for each message before a session is established.
const openPatience = 10 * time.Second

// ErrAway is the cause by which a session ends so that the peer keeps the routes, if it can: the
// connection is closed without a NOTIFICATION.
var ErrAway = errors.New("this node is away for a while")

// ErrLeaving is the cause by which a session ends so that the peer drops the routes.
var ErrLeaving = errors.New("this node announces no more")

var errHold = errors.New("the router has been silent for longer than the hold time")

// session is an open connection to a peer.
type session struct {
	link *link
	conn net.Conn
	in   chan message
	lost chan error // of the reader
	said agreed
	sent map[netip.Prefix]Attributes
}

// run makes one session, and returns when it is over.
func (l *link) run(ctx context.Context) error {
	l.tell(Connect)
	conn, err := l.speaker.config.dial(ctx, &l.peer)
	if err != nil {
		return err
	}
	defer conn.Close()
	done := make(chan struct{})
	defer close(done)
	s := &session{link: l, conn: conn, in: make(chan message), lost: make(chan error, 1),
		sent: map[netip.Prefix]Attributes{}}
	go func() { // ends with the connection
		for {
			m, err := read(conn)
			if err != nil {
				s.lost <- err
				return
			}
			select {
			case s.in <- m:
			case <-done:
				return
			}
		}
	}()
	err = s.live(ctx)
	s.goodbye(ctx, err)
	return err
}

// live is a session from OPEN to its end.
func (s *session) live(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	own := local(s.conn)
	s.link.established(s.said.restart)
	if err := s.update(own); err != nil {
		return err
	}
	if err := s.send(bgp.NewEndOfRib(familyOf(own))); err != nil {
		return err
	}
	var alive <-chan time.Time
	hold := time.NewTimer(s.said.hold)
	defer hold.Stop()
	if s.said.hold > 0 {
		tick := time.NewTicker(s.said.hold / 3)
		defer tick.Stop()
		alive = tick.C
	} else {
		hold.Stop()
	}
	for {
		changed := s.link.speaker.watch()
		if err := s.update(own); err != nil {
			return err
		}
		select {
		case m := <-s.in:
			if err := s.heard(own, m); err != nil {
				return err
			}
			if s.said.hold > 0 {
				hold.Reset(s.said.hold)
			}
		case err := <-s.lost:
			return closed(err)
		case <-hold.C:
			return errHold
		case <-alive:
			if err := s.send(bgp.NewBGPKeepAliveMessage()); err != nil {
				return err
			}
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// open leads the session to Established.
func (s *session) open(ctx context.Context) error {
	p, id := &s.link.peer, s.link.speaker.config.ID
	hello, err := openOf(p, id)
	if err != nil {
		return err
	}
	if err := s.send(hello); err != nil {
		return err
	}
	s.link.tell(OpenSent)
	m, err := s.await(ctx, bgp.BGP_MSG_OPEN)
	if err != nil {
		return err
	}
	if s.said, err = agree(p, id, m.open); err != nil {
		return err
	}
	if err := s.send(bgp.NewBGPKeepAliveMessage()); err != nil {
		return err
	}
	s.link.tell(OpenConfirm)
	_, err = s.await(ctx, bgp.BGP_MSG_KEEPALIVE)
	return err
}

// await waits for a message of one kind.
func (s *session) await(ctx context.Context, kind uint8) (message, error) {
	timer := time.NewTimer(openPatience)
	defer timer.Stop()
	select {
	case m := <-s.in:
		switch m.kind {
		case kind:
			return m, nil
		case bgp.BGP_MSG_NOTIFICATION:
			return m, endedBy(m.notification)
		}
		return m, &fault{code: bgp.BGP_ERROR_FSM_ERROR,
			text: fmt.Sprintf("the router has sent a message of type %d in place of one of type %d", m.kind, kind)}
	case err := <-s.lost:
		return message{}, closed(err)
	case <-timer.C:
		return message{}, fmt.Errorf("%w before the session was established", errHold)
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
}

// heard acts on a message of an established session.
func (s *session) heard(own netip.Addr, m message) error {
	switch m.kind {
	case bgp.BGP_MSG_NOTIFICATION:
		return endedBy(m.notification)
	case bgp.BGP_MSG_OPEN:
		return &fault{code: bgp.BGP_ERROR_FSM_ERROR, text: "the router has sent a second OPEN"}
	case bgp.BGP_MSG_ROUTE_REFRESH:
		clear(s.sent)
		if err := s.update(own); err != nil {
			return err
		}
	}
	return nil
}

// update sends the routes that the peer lacks, and withdraws those that are over.
func (s *session) update(own netip.Addr) error {
	routes := s.link.speaker.routesOf(own)
	var over []netip.Prefix
	for _, p := range ordered(s.sent) {
		if _, ok := routes[p]; !ok {
			over = append(over, p)
			delete(s.sent, p)
		}
	}
	messages, err := withdraw(over)
	if err != nil {
		return err
	}
	for _, group := range groups(routes, s.sent) {
		more, err := announce(&s.link.peer, own, group.of, group.prefixes)
		if err != nil {
			return err
		}
		messages = append(messages, more...)
		for _, p := range group.prefixes {
			s.sent[p] = group.of
		}
	}
	for _, m := range messages {
		if err := s.send(m); err != nil {
			return err
		}
	}
	s.link.announced(len(s.sent))
	return nil
}

// group is routes with the same attributes.
type group struct {
	of       Attributes
	prefixes []netip.Prefix
}

// groups are the routes that the peer does not have like that, in order.
func groups(routes, sent map[netip.Prefix]Attributes) (out []group) {
next:
	for _, p := range ordered(routes) {
		of := routes[p]
		if had, ok := sent[p]; ok && had.equal(of) {
			continue
		}
		for i := range out {
			if out[i].of.equal(of) {
				out[i].prefixes = append(out[i].prefixes, p)
				continue next
			}
		}
		out = append(out, group{of, []netip.Prefix{p}})
	}
	return out
}

// sendPatience bounds how long a peer may leave messages in the connection.
const sendPatience = 5 * time.Second

func (s *session) send(m *bgp.BGPMessage) error {
	raw, err := m.Serialize()
	if err != nil {
		return fmt.Errorf("encode a BGP message: %w", err)
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
		return err
	}
	if _, err := s.conn.Write(raw); err != nil {
		return fmt.Errorf("send to the router: %w", plain(err))
	}
	return nil
}

// goodbye tells the peer why the session ends, unless it is to keep the routes.
func (s *session) goodbye(ctx context.Context, why error) {
	var code, subcode uint8
	var data []byte
	wrong, faulty := errors.AsType[*fault](why)
	switch {
	case faulty:
		code, subcode, data = wrong.code, wrong.subcode, wrong.data
	case errors.Is(why, errHold):
		code = bgp.BGP_ERROR_HOLD_TIMER_EXPIRED
	case errors.Is(why, ErrAway) && s.said.restart, ctx.Err() == nil:
		return
	default:
		code, subcode = bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN
	}
	if err := s.send(bgp.NewBGPNotificationMessage(code, subcode, data)); err != nil {
		s.link.speaker.config.Logger.Debug("the router has not heard why the session ends", "peer", s.link.peer.Name,
			"err", err)
	}
}

// closed is the error for a connection that the peer has closed.
func closed(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the router has closed the connection")
	}
	return plain(err)
}

// plain is an error of a connection without its addresses: the port is another one each time, and
// the same reason is told once.
func plain(err error) error {
	if of, ok := errors.AsType[*net.OpError](err); ok {
		return of.Err
	}
	return err
}

// local is the connection's own address.
func local(c net.Conn) netip.Addr {
	if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
