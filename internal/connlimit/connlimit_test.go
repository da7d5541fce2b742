package connlimit

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
)

// fakeConn is a connection from an address.
type fakeConn struct {
	net.Conn
	remote net.Addr
	closed bool
}

func (f *fakeConn) RemoteAddr() net.Addr { return f.remote }

func (f *fakeConn) Close() error {
	f.closed = true
	return nil
}

func from(address string) *fakeConn {
	return &fakeConn{remote: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestFloods: during a flood from any source, a client of another source stays until it has
// authenticated. The number of connections is bounded.
func TestFloods(t *testing.T) {
	exempt := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	limits := Limits{Total: 100, PerSource: 20, Exempt: exempt}
	for name, c := range map[string]struct {
		source func(i int) string
		open   int // connections of the flood that stay
	}{
		"one source":                 {func(i int) string { return fmt.Sprintf("10.0.0.1:%d", 1+i) }, 20},
		"one network of IPv6":        {func(i int) string { return fmt.Sprintf("[2001:db8::%x]:1", 1+i) }, 20},
		"the same address as mapped": {func(i int) string { return fmt.Sprintf("[::ffff:10.0.0.1]:%d", 1+i) }, 20},
		"many sources":               {func(i int) string { return fmt.Sprintf("10.1.%d.%d:1", i/250, i%250) }, 100},
		"an exempt source":           {func(i int) string { return fmt.Sprintf("192.0.2.1:%d", 1+i) }, 98},
		"loopback":                   {func(i int) string { return fmt.Sprintf("127.0.0.1:%d", 1+i) }, 98},
		"loopback of IPv6":           {func(i int) string { return fmt.Sprintf("[::1]:%d", 1+i) }, 98},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(limits, quiet())
			first, known := from("10.9.9.9:1"), from("10.9.9.9:2")
			l.Enter(first)
			l.Enter(known).Authenticate()
			second := from("10.9.9.8:1")
			l.Enter(second)
			var flood []*fakeConn
			for i := range 5000 {
				conn := from(c.source(i))
				flood = append(flood, conn)
				l.Enter(conn)
				if l.Count() > limits.Total {
					t.Fatalf("%d connections", l.Count())
				}
			}
			if known.closed {
				t.Error("the connection of a known client was closed")
			}
			if name != "many sources" && (first.closed || second.closed) {
				t.Error("a connection of another source was closed")
			}
			open := 0
			for i, conn := range flood {
				if !conn.closed {
					open++
				} else if i >= 4980 {
					t.Error("one of the newest connections was closed")
				}
			}
			if open != c.open && !(name == "many sources" && open >= c.open-2) {
				t.Errorf("%d of the flood are open, want %d", open, c.open)
			}
		})
	}
}

// TestLeaving: connections that end, authenticate or settle leave their places, once.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{Total: 10, PerSource: 10, Settled: time.Minute}, quiet())
		var open []*Conn
		for i := range 10 {
			open = append(open, l.Enter(from(fmt.Sprintf("10.0.0.%d:1", i))))
		}
		for range 2 {
			_ = open[0].Close()
			open[1].Authenticate()
			_ = open[1].Close()
			open[2].Authenticate()
		}
		if n := l.Count(); n != 7 {
			t.Errorf("%d are counted, want 7", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := l.Count(); n != 0 || len(l.from) != 0 {
			t.Errorf("%d of %d sources are counted after they have settled", n, len(l.from))
		}
	})
}

// TestARefusedClientCountsAgain: a connection that loses its client counts again, in its place by
// age. A connection that has ended does not.
func TestARefusedClientCountsAgain(t *testing.T) {
	l := New(Limits{Total: 3, PerSource: 3}, quiet())
	var open []*Conn
	for i := range 6 {
		open = append(open, l.Enter(from(fmt.Sprintf("10.0.0.1:%d", i+1))))
		open[i].Authenticate()
	}
	_ = open[5].Close()
	for _, i := range []int{5, 4, 4, 1, 2, 0} { // the last one is one too many
		open[i].Estrange()
	}
	if n := l.Count(); n != 3 {
		t.Errorf("%d are counted, want 3", n)
	}
	for i, c := range open {
		if closed := c.Conn.(*fakeConn).closed; closed != (i == 0 || i == 5) {
			t.Errorf("connection %d is closed: %v", i, closed)
		}
	}
	open[4].Authenticate()
	open[4].Authenticate()
	if n := l.Count(); n != 2 || open[3].Conn.(*fakeConn).closed {
		t.Errorf("%d are counted, want 2", n)
	}
	for _, c := range open {
		_ = c.Close()
	}
	if n := l.Count(); n != 0 || len(l.from) != 0 {
		t.Errorf("%d of %d sources are counted after all have ended", n, len(l.from))
	}
}

// TestFloodIsLogged: by a few lines, with the number of the others.
func TestFloodIsLogged(t *testing.T) {
	var out syncbuf.Buffer
	l := New(Limits{Total: 10}, slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 5000 {
		l.Enter(from(fmt.Sprintf("10.1.%d.%d:1", i/250, i%250)))
	}
	if n := strings.Count(out.String(), "\n"); n == 0 || n > 20 {
		t.Errorf("%d lines", n)
	}
}

// TestClientsStay: where clients do not authenticate, too many clients of one source do not take
// each other's connections.
func TestClientsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limits := range []Limits{{Total: 100, PerSource: 10, Settled: time.Minute},
			{Total: 10, PerSource: 100, Settled: time.Minute}, {Total: 100, PerSource: 10, Anonymous: true}} {
			l := New(limits, quiet())
			var open []*Conn
			for i := range 30 {
				open = append(open, l.Enter(from(fmt.Sprintf("10.0.0.1:%d", i+1))))
			}
			for i, c := range open {
				if closed := c.Conn.(*fakeConn).closed; closed != (i >= 10) {
					t.Errorf("connection %d is closed: %v", i, closed)
				}
			}
			for _, c := range open {
				_ = c.Close()
			}
		}
	})
}

// sends is a connection from an address that has sent so many bytes.
type sends struct {
	*fakeConn
	bytes int
}

func (s *sends) Read(p []byte) (int, error) {
	n := min(len(p), s.bytes)
	s.bytes -= n
	return n, nil
}

// TestWhatStrangersSendIsBounded: the fullest connection of the source with the most bytes goes.
// Those of clients that are known, or whose request was answered, do not count.
func TestWhatStrangersSendIsBounded(t *testing.T) {
	type client struct {
		address  string
		bytes    int
		then     func(*Conn) // after it has sent
		survives bool
	}
	for name, c := range map[string]struct {
		clients []client
		held    int64
	}{
		"little": {[]client{{"10.0.0.1:1", 40, nil, true}, {"10.0.0.1:2", 60, nil, true}}, 100},
		"a heavy source": {
			[]client{{"10.0.0.1:1", 30, nil, true}, {"10.0.0.1:2", 35, nil, false}, {"10.0.0.2:1", 30, nil, true},
				{"10.0.0.3:1", 20, nil, true}}, 80},
		"many sources": {
			[]client{{"10.0.0.1:1", 40, nil, false}, {"10.0.0.2:1", 30, nil, true}, {"10.0.0.3:1", 35, nil, true}}, 65},
		"at once": {[]client{{"10.0.0.1:1", 30, nil, true}, {"10.0.0.2:1", 101, nil, false}}, 30},
		"a known client": {
			[]client{{"10.0.0.1:1", 90, (*Conn).Authenticate, true}, {"10.0.0.2:1", 90, nil, true}}, 90},
		"answered": {
			[]client{{"10.0.0.1:1", 90, (*Conn).Consumed, true}, {"10.0.0.2:1", 90, nil, true}}, 90},
		"known, and not any more": {
			[]client{{"10.0.0.1:1", 90, func(c *Conn) { c.Authenticate(); c.Estrange() }, true},
				{"10.0.0.2:1", 90, nil, true}}, 90},
		"closed": {
			[]client{{"10.0.0.1:1", 90, func(c *Conn) { _ = c.Close() }, false}, {"10.0.0.2:1", 90, nil, true}}, 90},
		"closed, and consumed later": {
			[]client{{"10.0.0.1:1", 90, func(c *Conn) { _ = c.Close(); c.Consumed() }, false},
				{"10.0.0.2:1", 90, nil, true}}, 90},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(Limits{Total: 10, Bytes: 100}, quiet())
			var conns []*sends
			for _, a := range c.clients {
				from := &sends{from(a.address), a.bytes}
				conns = append(conns, from)
				conn := l.Enter(from)
				if n, err := conn.Read(make([]byte, 1000)); n != a.bytes || err != nil {
					t.Fatalf("%d, %v", n, err)
				}
				if a.then != nil {
					a.then(conn)
				}
			}
			for i, a := range c.clients {
				if conns[i].closed == a.survives {
					t.Errorf("%s with %d bytes: closed is %t", a.address, a.bytes, conns[i].closed)
				}
			}
			if held := l.Held(); held != c.held {
				t.Errorf("%d bytes are held, want %d", held, c.held)
			}
		})
	}
}

// TestBytesThatArePassedOn are not bounded: nobody keeps them.
func TestBytesThatArePassedOn(t *testing.T) {
	l := New(Limits{Settled: time.Minute}, quiet())
	conn := &sends{from("10.0.0.1:1"), 1 << 30}
	c := l.Enter(conn)
	defer c.Close()
	buffer := make([]byte, 1<<20)
	for range 1 << 10 {
		if n, err := c.Read(buffer); n != len(buffer) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if conn.closed || l.Held() != 0 {
		t.Errorf("closed is %t, %d bytes are held", conn.closed, l.Held())
	}
}
