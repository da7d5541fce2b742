package balancer_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/membership/balancer"
)

// patience bounds steps that take milliseconds on a machine that is not busy.
const patience = time.Minute

// server answers each line with its name, and can be made ill while its port stays open, as a
// stopped process is.
type server struct {
	addr netip.AddrPort
	ill  atomic.Bool
}

func newServer(t *testing.T, name string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for scanner := bufio.NewScanner(conn); scanner.Scan(); {
					fmt.Fprintln(conn, name)
				}
			}()
		}
	}()
	return &server{addr: netip.MustParseAddrPort(l.Addr().String())}
}

func start(t *testing.T, servers ...*server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	byAddr := map[netip.AddrPort]*server{}
	var addrs []netip.AddrPort
	for _, s := range servers {
		byAddr[s.addr] = s
		addrs = append(addrs, s.addr)
	}
	b := balancer.New(balancer.Config{
		Listener: l,
		Servers:  func() []netip.AddrPort { return addrs },
		Probe: func(_ context.Context, addr netip.AddrPort, _ int) error {
			if byAddr[addr].ill.Load() {
				return errors.New("ill")
			}
			return nil
		},
		Interval: 5 * time.Millisecond,
		Patience: 20 * time.Millisecond, // the test waits for its end
		Requests: 20 * time.Millisecond, // servers that are ill accept connections
		Lost:     func(addr netip.AddrPort) bool { return byAddr[addr].ill.Load() },
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

type session struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, addr string) *session {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &session{conn, bufio.NewReader(conn)}
}

func (s *session) ask() (string, error) {
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(s, "who?"); err != nil {
		return "", err
	}
	return s.lines.ReadString('\n')
}

// eventually asks over new connections until the wanted server answers.
func eventually(t *testing.T, addr, want string) *session {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		s := dial(t, addr)
		if got, err := s.ask(); err == nil && got == want {
			return s
		}
		s.Close()
	}
	t.Fatalf("%q never answered", want)
	return nil
}

func TestMovesToALivingServerAndCutsTheOldConnection(t *testing.T) {
	one, two := newServer(t, "one"), newServer(t, "two")
	addr := start(t, one, two)
	old := eventually(t, addr, "one\n")

	one.ill.Store(true)
	// The connection through the ill server must end, without the client doing anything.
	if err := old.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := old.lines.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the connection through an ill server was not cut: %v", err)
	} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Fatal("the connection through an ill server was not cut")
	}
	eventually(t, addr, "two\n")

	one.ill.Store(false)
	eventually(t, addr, "one\n")
}

func TestSkipsAServerThatDoesNotListen(t *testing.T) {
	// the port of one that was closed could be taken by another process
	gone := &server{addr: netip.MustParseAddrPort("127.0.0.1:1")}
	eventually(t, start(t, gone, newServer(t, "two")), "two\n")
}

func TestHalfCloseIsPassedOn(t *testing.T) {
	addr := start(t, newServer(t, "one"))
	s := eventually(t, addr, "one\n")
	if err := s.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(s.lines); err != nil || len(rest) != 0 {
		t.Fatalf("after the half-close: %q, %v; want a clean end", rest, err)
	}
}

// One that gets its own address for a server's does not forward to itself.
func TestItIsNoServerOfItsOwn(t *testing.T) {
	s := newServer(t, "s1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	self := netip.MustParseAddrPort(l.Addr().String())
	var forwarded, probed atomic.Int64
	b := balancer.New(balancer.Config{
		Listener: l, Logger: slog.New(slog.DiscardHandler), Interval: 10 * time.Millisecond,
		Servers: func() []netip.AddrPort { return []netip.AddrPort{self, s.addr} },
		Probe: func(_ context.Context, addr netip.AddrPort, _ int) error {
			if addr == self {
				probed.Add(1)
			}
			return nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == self.String() {
				forwarded.Add(1)
				return nil, errors.New("to itself")
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	deadline := time.After(patience)
	for answered := false; !answered; {
		conn, err := net.Dial("tcp", self.String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(conn, "who?")
		line, err := bufio.NewReader(conn).ReadString('\n')
		conn.Close()
		answered = err == nil && line == "s1\n"
		select {
		case <-deadline:
			t.Fatal("the server does not answer")
		default:
		}
	}
	if forwarded.Load() != 0 || probed.Load() != 0 {
		t.Errorf("it asked itself %d times and forwarded to itself %d times", probed.Load(), forwarded.Load())
	}
}
