package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// world is servers in memory, whose probes and connections do what a test says, in virtual time.
type world struct {
	mu      sync.Mutex
	state   map[netip.AddrPort]condition
	accept  chan net.Conn
	closed  chan struct{}
	once    sync.Once
	order   []netip.AddrPort
	probes  map[netip.AddrPort]int
	serving sync.WaitGroup
}

type condition int

const (
	fine    condition = iota
	unready           // answers that it is not ready; connections work
	stopped           // connections are accepted and nothing answers, as with a process that is stopped
	killed            // connections are refused
)

var one, two, three = netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("10.0.0.2:6443"), netip.MustParseAddrPort("10.0.0.3:6443")

func (w *world) set(server netip.AddrPort, c condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state[server] = c
}

func (w *world) get(server netip.AddrPort) condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state[server]
}

func (w *world) probe(ctx context.Context, server netip.AddrPort) error {
	w.mu.Lock()
	w.probes[server]++
	w.mu.Unlock()
	switch w.get(server) {
	case unready:
		return fmt.Errorf("%w: 500", ErrNotReady)
	case stopped:
		<-ctx.Done()
		return context.Cause(ctx)
	case killed:
		return errors.New("connection refused")
	}
	return nil
}

// dial connects to a server that echoes.
func (w *world) dial(_ context.Context, _, address string) (net.Conn, error) {
	if w.get(netip.MustParseAddrPort(address)) == killed {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	w.serving.Go(func() {
		defer far.Close()
		if _, err := io.WriteString(far, address+"\n"); err == nil {
			_, _ = io.Copy(far, far)
		}
	})
	return near, nil
}

func (w *world) Accept() (net.Conn, error) {
	select {
	case c := <-w.accept:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *world) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (w *world) Addr() net.Addr { return &net.TCPAddr{} }

// client is a connection through the balancer.
type client struct {
	net.Conn
	server string
	ended  chan struct{} // closed when the connection was
}

func (w *world) connect(t *testing.T) *client {
	t.Helper()
	near, far := net.Pipe()
	w.accept <- far
	hello := make([]byte, len("10.0.0.1:6443\n"))
	if _, err := io.ReadFull(near, hello); err != nil {
		t.Fatalf("no server: %v", err)
	}
	c := &client{Conn: near, server: string(hello[:len(hello)-1]), ended: make(chan struct{})}
	w.serving.Go(func() {
		_, _ = io.Copy(io.Discard, near)
		near.Close()
		close(c.ended)
	})
	return c
}

func (c *client) isOpen() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// inWorld runs a balancer over three servers until f returns, all in virtual time.
func inWorld(t *testing.T, c Config, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{state: map[netip.AddrPort]condition{}, accept: make(chan net.Conn), closed: make(chan struct{}),
			order: []netip.AddrPort{one, two, three}, probes: map[netip.AddrPort]int{}}
		c.Listener, c.Servers, c.Probe, c.Dial = w, func() []netip.AddrPort { return w.order }, w.probe, w.dial
		c.Logger = slog.New(slog.DiscardHandler)
		b := New(c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		after(time.Second) // all were probed
		f(t, w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.serving.Wait()
	})
}

// after lets virtual time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestConnectionsStayWhereNobodyIsBetter(t *testing.T) {
	for what, c := range map[string]condition{"not ready": unready, "stopped": stopped} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				old := w.connect(t)
				for _, s := range w.order {
					w.set(s, c)
				}
				after(time.Minute)
				if !old.isOpen() {
					t.Fatal("a connection was cut though no server is better")
				}
				if c == unready {
					if now := w.connect(t); now.server != one.String() {
						t.Fatalf("a new connection leads to %s", now.server)
					}
				}
				w.set(two, fine)
				after(maxBackoff * 300 * time.Millisecond)
				if old.isOpen() {
					t.Fatal("a connection stays with a bad server though there is a good one")
				}
			})
		})
	}
}

func TestOneLivingServerIsUsedAlthoughItIsNotReady(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.set(one, killed)
		w.set(two, unready)
		w.set(three, stopped)
		after(10 * time.Second)
		c := w.connect(t)
		if c.server != two.String() {
			t.Fatalf("connected to %s", c.server)
		}
		after(time.Minute)
		if !c.isOpen() {
			t.Fatal("the connection to the only living server was cut")
		}
	})
}

// The bounds that docs/design.md states.
func TestHowSoonConnectionsMove(t *testing.T) {
	for what, c := range map[string]struct {
		to      condition
		within  time.Duration
		notYet  time.Duration // it must still be there then
		newSoon time.Duration // after this a new connection leads elsewhere
	}{
		"killed":    {killed, 600 * time.Millisecond, 0, 0},
		"stopped":   {stopped, 1700 * time.Millisecond, 600 * time.Millisecond, 1700 * time.Millisecond},
		"not ready": {unready, 5600 * time.Millisecond, 4900 * time.Millisecond, 300 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				old := w.connect(t)
				if old.server != one.String() {
					t.Fatalf("connected to %s", old.server)
				}
				w.set(one, c.to)
				began := time.Now()
				after(c.notYet)
				if !old.isOpen() {
					t.Fatalf("cut before %s", c.notYet)
				}
				after(c.newSoon - time.Since(began))
				if now := w.connect(t); now.server == one.String() {
					t.Fatalf("after %s a new connection leads to the bad server", c.newSoon)
				}
				after(c.within - time.Since(began))
				if old.isOpen() {
					t.Fatalf("not cut after %s", c.within)
				}
			})
		})
	}
}

func TestOneLostProbeCutsNobodyOff(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		old := w.connect(t)
		for range 20 {
			w.set(one, stopped)
			after(500 * time.Millisecond) // one probe begins and times out
			w.set(one, fine)
			after(2 * time.Second)
		}
		if !old.isOpen() {
			t.Fatal("cut")
		}
	})
}

func TestConnectionsReturnOneByOneWhenTheyAreQuiet(t *testing.T) {
	inWorld(t, Config{Return: 2 * time.Minute}, func(t *testing.T, w *world) {
		w.set(one, killed)
		after(5 * time.Second)
		var watches []*client
		for range 3 {
			watches = append(watches, w.connect(t))
		}
		busy := w.connect(t)
		stop := make(chan struct{})
		w.serving.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-busy.ended:
					return
				case <-time.After(50 * time.Millisecond):
					_, _ = io.WriteString(busy, "more") // the end of the connection is what counts
				}
			}
		})
		open := func() (n int) {
			for _, c := range watches {
				if c.isOpen() {
					n++
				}
			}
			return n
		}
		w.set(one, fine)
		after(2 * time.Minute)
		if open() != 3 {
			t.Fatalf("%d of 3 connections are left before the time of return", open())
		}
		before := open()
		for range 18 {
			after(10 * time.Second)
			now := open()
			if before-now > 1 {
				t.Fatalf("%d connections were cut within one step", before-now)
			}
			before = now
		}
		if before != 0 || !busy.isOpen() {
			t.Fatalf("%d quiet connections did not return; the busy one stayed: %t", before, busy.isOpen())
		}
		if c := w.connect(t); c.server != one.String() {
			t.Fatalf("a new connection leads to %s", c.server)
		}
		close(stop)
	})
}

func TestServersThatAreNotUsedAreProbedRarely(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.connect(t)
		w.set(three, killed)
		after(30 * time.Second)
		w.mu.Lock()
		clear(w.probes)
		w.mu.Unlock()
		after(time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.probes[one] < 150 || w.probes[two] > 45 || w.probes[three] > 15 {
			t.Fatalf("probes in a minute: %v", w.probes)
		}
	})
}

func TestSpread(t *testing.T) {
	servers := []netip.AddrPort{one, two, three}
	first := map[netip.AddrPort]int{}
	for i := range 900 {
		machine := fmt.Sprintf("agent-%d", i)
		order := Spread(machine, servers)
		if again := Spread(machine, []netip.AddrPort{three, one, two}); fmt.Sprint(again) != fmt.Sprint(order) {
			t.Fatalf("%s: %v, and then %v", machine, order, again)
		}
		without := Spread(machine, []netip.AddrPort{two, three})
		if order[0] != one && without[0] != order[0] {
			t.Fatalf("%s moves from %v to %v because %v went", machine, order[0], without[0], one)
		}
		first[order[0]]++
	}
	for s, n := range first {
		if n < 240 || n > 360 {
			t.Errorf("%v is first for %d of 900 machines", s, n)
		}
	}
}
