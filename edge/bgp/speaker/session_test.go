package speaker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// far is the router's end of a pipe, led by a test.
type far struct {
	t *testing.T
	net.Conn
	got chan message
	end chan error
}

// addressed is a pipe with an address.
type addressed struct{ net.Conn }

// LocalAddr implements net.Conn.
func (addressed) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7)} }

// rig is a speaker whose connections are pipes. It runs in a bubble.
type rig struct {
	*Speaker
	conns chan *far
}

func newRig(t *testing.T) *rig {
	r := &rig{conns: make(chan *far, 10)}
	r.Speaker = New(Config{ID: netip.MustParseAddr("192.0.2.7"), Changed: func(Session) {},
		dial: func(context.Context, *Peer) (net.Conn, error) {
			near, other := net.Pipe()
			f := &far{t: t, Conn: other, got: make(chan message, 1000), end: make(chan error, 1)}
			go func() { // ends with the pipe
				for {
					m, err := read(other)
					if err != nil {
						f.end <- err
						return
					}
					f.got <- m
				}
			}()
			r.conns <- f
			return addressed{near}, nil
		}})
	return r
}

func (f *far) send(m *bgp.BGPMessage) {
	f.t.Helper()
	raw, err := m.Serialize()
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.Write(raw); err != nil {
		f.t.Fatal(err)
	}
}

func (f *far) wants(kind uint8) message {
	f.t.Helper()
	select {
	case m := <-f.got:
		if m.kind != kind {
			f.t.Fatalf("a message of type %d, want %d", m.kind, kind)
		}
		return m
	case err := <-f.end:
		f.t.Fatalf("the connection has ended (%v), want a message of type %d", err, kind)
	}
	return message{}
}

// hello is the router's OPEN.
func hello(t *testing.T, hold uint16, capabilities ...bgp.ParameterCapabilityInterface) *bgp.BGPMessage {
	m, err := bgp.NewBGPOpenMessage(routerAS, hold, netip.MustParseAddr("192.0.2.254"),
		[]bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(capabilities)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func usual() []bgp.ParameterCapabilityInterface {
	return []bgp.ParameterCapabilityInterface{bgp.NewCapFourOctetASNumber(routerAS),
		bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC)}
}

var pipePeer = Peer{Name: "r", Address: netip.MustParseAddrPort("192.0.2.254:179"), AS: routerAS, LocalAS: nodesAS,
	HoldTime: 9 * time.Second, RestartTime: time.Minute}

// opened is the router's end of a session that is established.
func (r *rig) opened(t *testing.T, hold uint16, capabilities ...bgp.ParameterCapabilityInterface) *far {
	t.Helper()
	f := <-r.conns
	f.wants(bgp.BGP_MSG_OPEN)
	f.send(hello(t, hold, append(usual(), capabilities...)...))
	f.wants(bgp.BGP_MSG_KEEPALIVE)
	f.send(bgp.NewBGPKeepAliveMessage())
	return f
}

// TestHoldTime: keepalives are sent three times in the shorter hold time, and a silent router's
// session ends with it, and comes again.
func TestHoldTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.Stop(ErrLeaving)
		r.SetPeers([]Peer{pipePeer})
		f := r.opened(t, 6)
		began := time.Now()
		f.wants(bgp.BGP_MSG_UPDATE) // the end of the routes, of which there are none
		for range 2 {
			f.wants(bgp.BGP_MSG_KEEPALIVE)
		}
		if is := time.Since(began); is != 4*time.Second {
			t.Errorf("two keepalives in %v", is)
		}
		synctest.Wait()
		if s := r.Sessions(); s[0].State != Established {
			t.Errorf("the session is %+v", s)
		}
		f.send(bgp.NewBGPKeepAliveMessage())
		heard := time.Now()
		for {
			m := <-f.got
			if m.kind == bgp.BGP_MSG_KEEPALIVE {
				continue
			}
			if m.kind != bgp.BGP_MSG_NOTIFICATION || m.notification.ErrorCode != bgp.BGP_ERROR_HOLD_TIMER_EXPIRED {
				t.Errorf("at the end came %+v", m)
			}
			break
		}
		if is := time.Since(heard); is != 6*time.Second {
			t.Errorf("the session ended after %v", is)
		}
		if err := <-f.end; !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		synctest.Wait()
		if s := r.Sessions(); s[0].State != Idle || !strings.Contains(s[0].Problem, "silent for longer") {
			t.Errorf("the session is %+v", s)
		}
		r.opened(t, 6)
		synctest.Wait()
		if s := r.Sessions(); s[0].State != Established || s[0].Problem != "" {
			t.Errorf("the next session is %+v", s)
		}
	})
}

// TestOpens: the router's OPEN decides, and a wrong one is answered.
func TestOpens(t *testing.T) {
	family := bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC)
	for name, c := range map[string]struct {
		open          func(*testing.T) *bgp.BGPMessage
		code, subcode uint8
		problem       string
	}{
		"another AS": {func(t *testing.T) *bgp.BGPMessage {
			return hello(t, 9, bgp.NewCapFourOctetASNumber(7))
		}, bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_BAD_PEER_AS,
			"the router is of AS 7, and the BGPPeer says 64512"},
		"two octets": {func(t *testing.T) *bgp.BGPMessage { return hello(t, 9, bgp.NewCapRouteRefresh()) },
			bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNSUPPORTED_CAPABILITY,
			"the router does not know AS numbers of four bytes (RFC 6793)"},
		"another family": {func(t *testing.T) *bgp.BGPMessage {
			return hello(t, 9, bgp.NewCapFourOctetASNumber(routerAS), family)
		}, bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNSUPPORTED_CAPABILITY,
			"the router does not take routes of the family ipv4-unicast in this session; switch that on there"},
		"a hold time": {func(t *testing.T) *bgp.BGPMessage { return hello(t, 2, usual()...) },
			bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME,
			"the router has sent a wrong message: unacceptable hold time 2"},
		"no OPEN": {func(*testing.T) *bgp.BGPMessage { return bgp.NewBGPKeepAliveMessage() },
			bgp.BGP_ERROR_FSM_ERROR, 0, "the router has sent a message of type 4 in place of one of type 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				defer r.Stop(ErrLeaving)
				r.SetPeers([]Peer{pipePeer})
				f := <-r.conns
				f.wants(bgp.BGP_MSG_OPEN)
				f.send(c.open(t))
				n := f.wants(bgp.BGP_MSG_NOTIFICATION).notification
				if n.ErrorCode != c.code || n.ErrorSubcode != c.subcode {
					t.Errorf("the router gets %d/%d", n.ErrorCode, n.ErrorSubcode)
				}
				synctest.Wait()
				if s := r.Sessions(); s[0].Problem != c.problem {
					t.Errorf("got  %s\nwant %s", s[0].Problem, c.problem)
				}
			})
		})
	}
}

// TestHowASessionEnds: without a NOTIFICATION where the router is to keep the routes and can, and
// with one otherwise.
func TestHowASessionEnds(t *testing.T) {
	graceful := bgp.NewCapGracefulRestart(false, false, 60, nil)
	for name, c := range map[string]struct {
		capabilities []bgp.ParameterCapabilityInterface
		why          error
		notified     bool
	}{
		"away":          {[]bgp.ParameterCapabilityInterface{graceful}, ErrAway, false},
		"leaving":       {[]bgp.ParameterCapabilityInterface{graceful}, ErrLeaving, true},
		"away, useless": {nil, ErrAway, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.SetPeers([]Peer{pipePeer})
				f := r.opened(t, 9, c.capabilities...)
				f.wants(bgp.BGP_MSG_UPDATE)
				synctest.Wait()
				r.Stop(c.why)
				if c.notified {
					n := f.wants(bgp.BGP_MSG_NOTIFICATION).notification
					if n.ErrorCode != bgp.BGP_ERROR_CEASE ||
						n.ErrorSubcode != bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN {
						t.Errorf("the router gets %d/%d", n.ErrorCode, n.ErrorSubcode)
					}
				}
				select {
				case m := <-f.got:
					t.Errorf("at the end came %+v", m)
				case err := <-f.end:
					if !errors.Is(err, io.EOF) {
						t.Error(err)
					}
				}
			})
		})
	}
}

// TestOurOpen: it says that routes are to be kept over a restart, as forwarding goes on.
func TestOurOpen(t *testing.T) {
	for _, restart := range []time.Duration{time.Minute, 0} {
		p := pipePeer
		p.RestartTime = restart
		m, err := openOf(&p, netip.MustParseAddr("192.0.2.7"))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := m.Serialize()
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if got.open.MyAS != asTrans || got.open.HoldTime != 9 {
			t.Errorf("the OPEN is %+v", got.open)
		}
		var graceful *bgp.CapGracefulRestart
		for _, o := range got.open.OptParams {
			for _, c := range o.(*bgp.OptionParameterCapability).Capability {
				if of, ok := c.(*bgp.CapGracefulRestart); ok {
					graceful = of
				}
			}
		}
		if restart == 0 {
			if graceful != nil {
				t.Errorf("it has %+v", graceful)
			}
			continue
		}
		if graceful == nil || graceful.Time != 60 || graceful.Flags != 0x08 || len(graceful.Tuples) != 1 ||
			graceful.Tuples[0].Flags != 0x80 {
			t.Fatalf("it has %+v", graceful)
		}
	}
}

// TestRefresh: a router that asks gets all routes again.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.Stop(ErrLeaving)
		r.SetRoutes(routesTo(Attributes{}, "198.51.100.1/32", "2001:db8::1/128"))
		r.SetPeers([]Peer{pipePeer})
		f := r.opened(t, 0) // without keepalives
		f.wants(bgp.BGP_MSG_UPDATE)
		f.wants(bgp.BGP_MSG_UPDATE) // the end
		synctest.Wait()
		f.send(bgp.NewBGPRouteRefreshMessage(bgp.AFI_IP, 0, bgp.SAFI_UNICAST))
		f.wants(bgp.BGP_MSG_UPDATE)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(f.got) > 0 || r.Sessions()[0].State != Established || r.Sessions()[0].Routes != 1 {
			t.Errorf("%d more messages, and %+v", len(f.got), r.Sessions())
		}
	})
}

// TestAttempts: they come with growing pauses, and their reason is told.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, attempts := time.Now(), []time.Duration{}
		s := New(Config{ID: netip.MustParseAddr("192.0.2.7"), Changed: func(Session) {},
			dial: func(context.Context, *Peer) (net.Conn, error) {
				attempts = append(attempts, time.Since(began))
				return nil, errors.New("no way")
			}})
		s.SetPeers([]Peer{pipePeer})
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if got := s.Sessions()[0]; got.Problem != "no way" || got.State != Idle || !got.Since.Equal(began) {
			t.Errorf("the session is %+v", got)
		}
		s.Stop(ErrAway)
		want := []time.Duration{0, 1, 3, 7, 15, 30, 45}
		if len(attempts) != len(want) {
			t.Fatalf("attempts after %v", attempts)
		}
		for i, at := range want {
			if attempts[i] != at*time.Second {
				t.Errorf("attempts after %v", attempts)
			}
		}
	})
}

// TestIPv6 reads the UPDATEs of the other family back.
func TestIPv6(t *testing.T) {
	p := pipePeer
	own := netip.MustParseAddr("2001:db8:1::7")
	prefixes := []netip.Prefix{netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("2001:db8::2/128")}
	up, err := announce(&p, own, Attributes{Communities: []uint32{1}, LargeCommunities: [][3]uint32{{1, 2, 3}}},
		prefixes)
	if err != nil {
		t.Fatal(err)
	}
	down, err := withdraw(prefixes)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range append(up, down...) {
		raw, err := m.Serialize()
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := bgp.ParseBGPMessage(raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range parsed.Body.(*bgp.BGPUpdate).PathAttributes {
			got = append(got, a.String())
		}
	}
	const want = "{Origin: i} {AsPath: 4200000001} {Communities: 0:1} " +
		"{MpReach(ipv6-unicast): {Nexthop: 2001:db8:1::7, NLRIs: [2001:db8::1/128:0 2001:db8::2/128:0]}} " +
		"{LargeCommunity: [ 1:2:3]} {MpUnreach(ipv6-unicast): {NLRIs: [2001:db8::1/128:0 2001:db8::2/128:0]}}"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

// TestLargestUpdate: with the most attributes that a pool may have, a message stays below the
// bound.
func TestLargestUpdate(t *testing.T) {
	of, prefixes := Attributes{}, []netip.Prefix{}
	for i := range uint32(32) {
		of.Communities = append(of.Communities, i)
		of.LargeCommunities = append(of.LargeCommunities, [3]uint32{i, i, i})
	}
	for i := range 250 {
		a := netip.MustParseAddr("2001:db8::").As16()
		a[15] = byte(i)
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom16(a), 128))
	}
	all, err := announce(&pipePeer, netip.MustParseAddr("2001:db8:1::7"), of, prefixes)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if raw, err := m.Serialize(); err != nil || len(raw) > maxLen {
			t.Errorf("%d bytes, %v", len(raw), err)
		}
	}
	if len(all) != 3 {
		t.Errorf("%d messages", len(all))
	}
}

// FuzzRead reads what a router may send: no bytes end the process, and an OPEN that is read can be
// judged.
func FuzzRead(f *testing.F) {
	for _, m := range []*bgp.BGPMessage{bgp.NewTestBGPOpenMessage(), bgp.NewBGPKeepAliveMessage(),
		bgp.NewTestBGPUpdateMessage(),
		bgp.NewBGPNotificationMessage(6, 2, []byte("\x05hello")), bgp.NewBGPRouteRefreshMessage(1, 0, 1)} {
		raw, err := m.Serialize()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := read(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if m.open != nil {
			_, err = agree(&pipePeer, netip.MustParseAddr("192.0.2.7"), m.open)
		}
		if m.notification != nil {
			err = endedBy(m.notification)
		}
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r == '\x1b' || r == '\n' }) {
			t.Errorf("the text of an error has control characters: %q", err)
		}
	})
}
