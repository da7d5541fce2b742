package balancer

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/connlimit"
)

// gate is a listener whose connections come from addresses.
type gate struct {
	incoming chan net.Conn
	closed   chan struct{}
}

func (g *gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.incoming:
		return c, nil
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

func (g *gate) Close() error {
	close(g.closed)
	return nil
}

func (*gate) Addr() net.Addr { return &net.TCPAddr{} }

// fromConn is a connection from an address.
type fromConn struct {
	net.Conn
	remote netip.AddrPort
}

func (f fromConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(f.remote) }

// enter opens a connection from an address. Without a greeting of a server it has ended.
func (g *gate) enter(w *world, from netip.Addr, port int) *client {
	near, far := net.Pipe()
	g.incoming <- fromConn{far, netip.AddrPortFrom(from, uint16(port))}
	c := &client{Conn: near, ended: make(chan struct{})}
	w.serving.Go(func() { // ends with the connection
		_, _ = io.Copy(io.Discard, near)
		near.Close()
		close(c.ended)
	})
	synctest.Wait()
	return c
}

func opened(clients []*client) (n int) {
	for _, c := range clients {
		if c.isOpen() {
			n++
		}
	}
	return n
}

// TestAFloodOfSilentClients: they hold a bounded number of connections, here and so at the servers,
// and never those of clients that are connected for a while. A connection that a server closes
// takes no place.
func TestAFloodOfSilentClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{make(chan net.Conn), make(chan struct{})}
		limits := connlimit.Limits{Total: 20, PerSource: 10}
		runWorld(t, Config{Listener: bounded(g, limits, slog.New(slog.DiscardHandler))}, func(t *testing.T, w *world) {
			mine := netip.MustParseAddr("192.0.2.1")
			old := g.enter(w, mine, 1)
			after(settled)
			var flood []*client
			for i := range 100 {
				flood = append(flood, g.enter(w, mine, 1000+i))
			}
			if n := opened(flood); n != limits.PerSource || !flood[0].isOpen() {
				t.Errorf("%d silent connections of one source are open, want the first %d", n, limits.PerSource)
			}
			for i := range 100 {
				flood = append(flood, g.enter(w, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 1))
			}
			if n := opened(flood); n != limits.Total {
				t.Errorf("%d silent connections are open, want %d", n, limits.Total)
			}
			if !old.isOpen() {
				t.Error("the client from before is cut off")
			}
			if c := g.enter(w, netip.MustParseAddr("203.0.113.9"), 1); !c.isOpen() {
				t.Error("a client of another source does not get in")
			}
			// A server closes the connections of strangers, which do not end them themselves.
			w.set(one, killed)
			w.set(two, killed)
			w.set(three, killed)
			after(lingers)
			if n := opened(append(flood, old)); n != 0 {
				t.Errorf("%d connections are open to servers that have closed them", n)
			}
			w.set(two, fine)
			after(time.Minute)
			for i := range limits.PerSource {
				if c := g.enter(w, mine, 2000+i); !c.isOpen() {
					t.Errorf("client %d does not get in", i)
				}
			}
		})
	})
}
