package dns

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// sockets are a listener and a packet socket without a network, for virtual time.
type sockets struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newSockets() *sockets {
	m := &sockets{conns: make(chan net.Conn, 2*maxConnections), closed: make(chan struct{})}
	m.close = sync.OnceFunc(func() { close(m.closed) })
	return m
}

func (m *sockets) Accept() (net.Conn, error) {
	select {
	case conn := <-m.conns:
		return conn, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// ReadFrom gets no packet, ever.
func (m *sockets) ReadFrom([]byte) (int, net.Addr, error) {
	<-m.closed
	return 0, nil, net.ErrClosed
}

func (m *sockets) WriteTo([]byte, net.Addr) (int, error) { return 0, net.ErrClosed }
func (m *sockets) SetDeadline(time.Time) error           { return nil }
func (m *sockets) SetReadDeadline(time.Time) error       { return nil }
func (m *sockets) SetWriteDeadline(time.Time) error      { return nil }
func (m *sockets) LocalAddr() net.Addr                   { return &net.UDPAddr{} }
func (m *sockets) Addr() net.Addr                        { return &net.TCPAddr{} }
func (m *sockets) Close() error {
	m.close()
	return nil
}

// connects returns a client's end of a new connection.
func (m *sockets) connects(from string) net.Conn {
	here, there := net.Pipe()
	m.conns <- distant{there, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))}
	return here
}

// distant is a connection from some address.
type distant struct {
	net.Conn
	from net.Addr
}

func (d distant) RemoteAddr() net.Addr { return d.from }

// TestServeEnds: clients that are connected do not keep the server from ending.
func TestServeEnds(t *testing.T) {
	for name, client := range map[string]func(conn *dns.Conn) error{
		"one that asks again and again": func(conn *dns.Conn) error {
			for {
				time.Sleep(tcpIdle - time.Second)
				if err := conn.WriteMsg(new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)); err != nil {
					return err
				}
				if _, err := conn.ReadMsg(); err != nil {
					return err
				}
			}
		},
		"one that waits for an answer": func(conn *dns.Conn) error {
			if err := conn.WriteMsg(new(dns.Msg).SetQuestion("a.tarpit.example.com.", dns.TypeA)); err != nil {
				return err
			}
			for { // it may hear of a failure before the connection ends
				if _, err := conn.ReadMsg(); err != nil {
					return err
				}
			}
		},
		"one that does not read": func(conn *dns.Conn) error {
			for {
				if err := conn.WriteMsg(new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.world.change(func() { b.world.tarpit = ".tarpit.example.com." })
				ctx, cancel := context.WithCancel(t.Context())
				m := newSockets()
				ended := make(chan error, 1)
				go func() { ended <- b.serveOn(ctx, m, m, func() {}) }()
				left := make(chan error, 1)
				conn := m.connects("10.42.0.9:5300")
				go func() { left <- client(&dns.Conn{Conn: conn}) }()
				synctest.Wait()
				stopped := time.Now()
				cancel()
				if err := <-ended; err != nil || time.Since(stopped) != 0 {
					t.Errorf("the server ended after %v: %v", time.Since(stopped), err)
				}
				if err := <-left; err == nil {
					t.Error("the client's connection stands")
				}
				_ = conn.Close()
			})
		})
	}
}

// TestClientThatDoesNotRead is left, so that it holds no place.
func TestClientThatDoesNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		m := newSockets()
		ended := make(chan error, 1)
		go func() { ended <- b.serveOn(ctx, m, m, func() {}) }()
		conn := m.connects("10.42.0.9:5300")
		if err := (&dns.Conn{Conn: conn}).WriteMsg(
			new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(b.places) != 0 {
			t.Error("it holds a place after a minute")
		}
		cancel()
		<-ended
		_ = conn.Close()
	})
}

// TestBoundedListener: neither all clients nor one of them have more connections than they may.
func TestBoundedListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSockets()
		l := newBoundedListener(m)
		accepted := make(chan net.Conn, 2*maxConnections)
		ended := make(chan error, 1)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					ended <- err
					return
				}
				accepted <- conn
			}
		}()
		for range maxConnectionsOfOne {
			m.connects("10.42.0.1:5300")
		}
		refused := m.connects("10.42.0.1:5301")
		if _, err := refused.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("one connection too many of a client: %v", err)
		}
		var last net.Conn
		for i := range maxConnections {
			last = m.connects(
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 43, byte(i / maxConnectionsOfOne), 1}), 5300).String())
		}
		synctest.Wait()
		if len(accepted) != maxConnections {
			t.Fatalf("%d connections, want %d", len(accepted), maxConnections)
		}
		first := <-accepted
		for range 2 { // a second time frees no second place
			_ = first.Close()
		}
		synctest.Wait()
		if len(accepted) != maxConnections {
			t.Errorf("%d connections and one that is closed, want %d", len(accepted), maxConnections)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: %v", err)
		}
		for len(accepted) > 0 {
			conn := <-accepted
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Fatal("an open connection after Close")
			}
			_ = conn.Close()
		}
		if l.sources.used != 0 || len(l.places) != 0 {
			t.Errorf("%d places of connections that are closed", l.sources.used)
		}
		_ = last.Close()
	})
}
