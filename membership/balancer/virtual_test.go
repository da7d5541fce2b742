package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
	givenUp int // probes that began and were not waited for
	open    map[netip.AddrPort][]net.Conn
	dials   map[netip.AddrPort][]time.Time // when they began
	serving sync.WaitGroup
}

type condition int

const (
	fine        condition = iota
	unready               // answers that it is not ready; connections work
	stopped               // connections are accepted and nothing answers, as with a process that is stopped
	partitioned           // nothing answers, not even to connections
	slow                  // answers after 400 ms
	distant               // answers after 180 ms
	lossy                 // the next probe gets no answer, and then all is fine
	killed                // connections are refused
)

// roundTrip is how long a probe of a server that is fine takes.
const roundTrip = 20 * time.Millisecond

var one, two, three = netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("10.0.0.2:6443"),
	netip.MustParseAddrPort("10.0.0.3:6443")

func (w *world) set(server netip.AddrPort, c condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state[server] = c
	if c == killed { // the kernel closes the connections of the process
		for _, conn := range w.open[server] {
			conn.Close()
		}
		delete(w.open, server)
	}
}

func (w *world) get(server netip.AddrPort) condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state[server]
}

func (w *world) probe(ctx context.Context, server netip.AddrPort, _ int) error {
	w.mu.Lock()
	w.probes[server]++
	is := w.state[server]
	if is == lossy {
		w.state[server] = fine
	}
	w.mu.Unlock()
	takes := roundTrip
	switch is {
	case stopped, partitioned, lossy:
		takes = time.Hour
	case slow:
		takes = 400 * time.Millisecond
	case distant:
		takes = 180 * time.Millisecond
	case killed:
		return errors.New("connection refused")
	}
	select {
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		w.givenUp++
		return context.Cause(ctx)
	case <-time.After(takes): // brief: in virtual time
	}
	if is == unready {
		return fmt.Errorf("%w: 500", ErrNotReady)
	}
	return nil
}

// asked returns how many probes each server got since it was last asked for.
func (w *world) asked() map[netip.AddrPort]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	probes := w.probes
	w.probes = map[netip.AddrPort]int{}
	return probes
}

// dial connects to a server that echoes.
func (w *world) dial(ctx context.Context, _, address string) (net.Conn, error) {
	server := netip.MustParseAddrPort(address)
	w.mu.Lock()
	w.dials[server] = append(w.dials[server], time.Now())
	w.mu.Unlock()
	switch w.get(server) {
	case killed:
		return nil, errors.New("connection refused")
	case partitioned:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	near, far := net.Pipe()
	w.mu.Lock()
	w.open[server] = append(w.open[server], far)
	w.mu.Unlock()
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
		if c == nil {
			return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
		}
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
	synctest.Test(t, func(t *testing.T) { runWorld(t, c, f) })
}

// runWorld is inWorld within a bubble. The listener may be one of the test.
func runWorld(t *testing.T, c Config, f func(t *testing.T, w *world)) {
	w := &world{state: map[netip.AddrPort]condition{}, accept: make(chan net.Conn), closed: make(chan struct{}),
		order: []netip.AddrPort{one, two, three}, probes: map[netip.AddrPort]int{},
		open: map[netip.AddrPort][]net.Conn{}, dials: map[netip.AddrPort][]time.Time{}}
	c.Servers, c.Probe, c.Dial = func() []netip.AddrPort { return w.order }, w.probe, w.dial
	if c.Listener == nil {
		c.Listener = w
	}
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
}

// after lets virtual time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestConnectionsStayWhereNobodyIsBetter(t *testing.T) {
	for what, c := range map[string]condition{"not ready": unready, "stopped": stopped, "cut off": partitioned} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				old := w.connect(t)
				for _, s := range w.order {
					w.set(s, c)
				}
				after(2 * time.Minute)
				if !old.isOpen() {
					t.Fatal("a connection was cut though no server is better")
				}
				if c == unready {
					if now := w.connect(t); now.server != one.String() {
						t.Fatalf("a new connection leads to %s", now.server)
					}
				}
				w.set(two, fine)
				after(maxBackoff*300*time.Millisecond + 2*time.Second)
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

// The bounds that docs/design.md states, at whatever moment between two questions it happens.
func TestHowSoonConnectionsMove(t *testing.T) {
	for what, c := range map[string]struct {
		to      condition
		within  time.Duration
		notYet  time.Duration // it must still be there then
		newSoon time.Duration // a connection that begins then leads elsewhere,
		newTook time.Duration // within this time
	}{
		"killed": {killed, 0, 0, 0, 0},
		"stopped": {stopped, 61600 * time.Millisecond, 60400 * time.Millisecond, 800 * time.Millisecond,
			0},
		"cut off": {partitioned, 61600 * time.Millisecond, 60400 * time.Millisecond, 0, dialTimeout},
		"stopped, lost to all": {stopped, 61600 * time.Millisecond, 60400 * time.Millisecond, 800 * time.Millisecond,
			0},
		"cut off from all": {partitioned, 6600 * time.Millisecond, 5400 * time.Millisecond, 0, dialTimeout},
		"not ready": {unready, 5600 * time.Millisecond, 4900 * time.Millisecond, 320 * time.Millisecond,
			0},
		"not ready, lost to all": {unready, 5600 * time.Millisecond, 4900 * time.Millisecond, 320 * time.Millisecond,
			0},
	} {
		step := 20 * time.Millisecond
		if c.within > time.Minute {
			step *= 7 // the patience is longer, and the moment shows less
		}
		for phase := time.Duration(0); phase < 300*time.Millisecond; phase += step {
			t.Run(fmt.Sprint(what, " ", phase), func(t *testing.T) {
				lost := func(netip.AddrPort) bool { return strings.HasSuffix(what, " all") }
				inWorld(t, Config{Lost: lost}, func(t *testing.T, w *world) {
					old := w.connect(t)
					if old.server != one.String() {
						t.Fatalf("connected to %s", old.server)
					}
					after(time.Second + phase)
					w.set(one, c.to)
					began := time.Now()
					after(c.newSoon)
					now := w.connect(t)
					if took := time.Since(began) - c.newSoon; now.server == one.String() || took > c.newTook {
						t.Fatalf("after %s a new connection leads to %s, within %s", c.newSoon, now.server, took)
					}
					if c.notYet > time.Since(began) {
						after(c.notYet - time.Since(began))
						if !old.isOpen() {
							t.Fatalf("cut before %s", c.notYet)
						}
					}
					after(c.within - time.Since(began))
					if old.isOpen() {
						t.Fatalf("not cut after %s", c.within)
					}
				})
			})
		}
	}
}

// Where the other servers take longer for an answer, the last question ends later.
func TestHowSoonConnectionsMoveToDistantServers(t *testing.T) {
	for phase := time.Duration(0); phase < 1500*time.Millisecond; phase += 10 * time.Millisecond {
		inWorld(t, Config{Lost: func(server netip.AddrPort) bool { return server == one }},
			func(t *testing.T, w *world) {
				w.set(two, distant)
				w.set(three, distant)
				old := w.connect(t)
				after(3*time.Second + phase)
				w.set(one, partitioned)
				after(time.Second)
				if now := w.connect(t); now.server == one.String() {
					t.Errorf("at %s: after 1 s a new connection leads to the silent server", phase)
				}
				after(6 * time.Second)
				if old.isOpen() {
					t.Errorf("at %s: not cut after 7 s", phase)
				}
			})
	}
}

// A server that a busy machine does not let run keeps its connections, while new connections
// go elsewhere.
func TestAShortSilenceCutsNothing(t *testing.T) {
	for what, c := range map[string]condition{"stopped": stopped, "cut off": partitioned} {
		for phase := time.Duration(0); phase < 300*time.Millisecond; phase += 20 * time.Millisecond {
			t.Run(fmt.Sprint(what, " ", phase), func(t *testing.T) {
				inWorld(t, Config{}, func(t *testing.T, w *world) {
					old := w.connect(t)
					after(time.Second + phase)
					for range 3 {
						w.set(one, c)
						after(4 * time.Second)
						if now := w.connect(t); now.server == one.String() {
							t.Error("a new connection leads to the silent server")
						}
						w.set(one, fine)
						after(2 * time.Second)
					}
					if !old.isOpen() {
						t.Error("a connection was cut though its server answers again")
					}
					if now := w.connect(t); now.server != one.String() {
						t.Errorf("a new connection leads to %s", now.server)
					}
				})
			})
		}
	}
}

// A request may take a minute. One whose server is silent for nearly as long, while the others
// answer, still gets its answer. Gossip loses such a server after some seconds. That matters when
// the machine accepts no connections: the server may be dead then, and is cut off.
func TestALongSilenceBreaksNoRequest(t *testing.T) {
	for what, c := range map[string]struct {
		is    condition
		loses time.Duration // after how long a silence gossip loses the server, in the first part
	}{
		"stopped":                 {stopped, time.Hour},
		"stopped, and lost at 5":  {stopped, 5 * time.Second},
		"stopped, and lost at 12": {stopped, 12 * time.Second},
		"cut off from here":       {partitioned, time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			var loses atomic.Pointer[time.Time]
			lost := func(server netip.AddrPort) bool {
				at := loses.Load()
				return server == one && at != nil && !time.Now().Before(*at)
			}
			inWorld(t, Config{Lost: lost}, func(t *testing.T, w *world) {
				old := w.connect(t)
				for _, silence := range []time.Duration{6 * time.Second, 30 * time.Second, 59 * time.Second} {
					at := time.Now().Add(c.loses)
					loses.Store(&at)
					w.set(one, c.is)
					after(silence)
					if now := w.connect(t); now.server == one.String() {
						t.Error("a new connection leads to the silent server")
					}
					w.set(one, fine)
					loses.Store(nil)
					after(10 * time.Second)
					if !old.isOpen() {
						t.Fatalf("the connection was cut in a silence of %v", silence)
					}
				}
				w.set(one, partitioned)
				at := time.Now().Add(10 * time.Second)
				loses.Store(&at)
				after(9 * time.Second)
				if !old.isOpen() {
					t.Error("the connection was cut before the server was lost to all")
				}
				after(3 * time.Second)
				if old.isOpen() {
					t.Error("the connection is open though the server is lost to all")
				}
			})
		})
	}
}

// A silent server in use is connected to when gossip has lost it, and each two seconds, whether it
// accepts the connection or not. One that gossip has not lost keeps its connections anyway.
func TestHowOftenASilentServerIsConnectedTo(t *testing.T) {
	for what, c := range map[string]struct {
		is   condition
		lost bool
	}{
		"stopped": {stopped, false}, "cut off": {partitioned, false},
		"stopped and lost": {stopped, true}, "cut off and lost": {partitioned, true},
	} {
		t.Run(what, func(t *testing.T) {
			lost := func(netip.AddrPort) bool { return c.lost }
			inWorld(t, Config{Lost: lost, Patience: 25 * time.Second}, func(t *testing.T, w *world) {
				old := w.connect(t)
				after(time.Second)
				w.set(one, c.is)
				w.mu.Lock()
				w.dials[one] = nil
				w.mu.Unlock()
				after(20 * time.Second)
				if !old.isOpen() {
					t.Error("the connection was cut")
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				dials := w.dials[one]
				if !c.lost && len(dials) > 0 || c.lost && len(dials) < 6 {
					t.Errorf("%d connections in 20 s", len(dials))
				}
				for i := range dials[min(1, len(dials)):] {
					if gap := dials[i+1].Sub(dials[i]); gap < reachEvery {
						t.Errorf("connection %d comes %s after the one before", i+2, gap)
					}
				}
			})
		})
	}
}

// A server that answers slowly, or loses a probe now and then, is left alone.
func TestOneLostProbeCutsNobodyOff(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		old := w.connect(t)
		after(time.Second)
		w.asked()
		for range 20 {
			w.set(one, lossy)
			after(3 * time.Second)
		}
		if !old.isOpen() {
			t.Fatal("cut")
		}
		if n := w.asked()[one]; n < 215 || n > 245 {
			t.Errorf(
				"%d probes in a minute, 20 of them lost; want 10 each three seconds, and one or two more for each that is lost", n)
		}
	})
}

func TestASlowServerIsNotSilent(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		old := w.connect(t)
		w.set(one, slow)
		after(time.Minute)
		if !old.isOpen() {
			t.Error("a server that takes 0.4 s for an answer was left")
		}
		if now := w.connect(t); now.server != one.String() {
			t.Errorf("a new connection leads to %s", now.server)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.givenUp != 0 {
			t.Errorf("%d probes were given up, which costs a server more than to answer", w.givenUp)
		}
	})
}

// When the network comes back for all servers, the one that happens to be asked first is no better
// than the others.
func TestConnectionsStayWhenAllComeBack(t *testing.T) {
	for phase := time.Duration(0); phase < 1500*time.Millisecond; phase += 30 * time.Millisecond {
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				w.set(one, killed)
				after(7*time.Second + phase/2) // so that servers are not asked at the same moments
				second := w.connect(t)
				w.set(one, fine)
				after(7*time.Second + phase/3)
				first := w.connect(t)
				if first.server != one.String() || second.server != two.String() {
					t.Fatalf("connected to %s and %s", first.server, second.server)
				}
				for _, s := range w.order {
					w.set(s, partitioned)
				}
				after(10*time.Second + phase)
				for _, s := range w.order {
					w.set(s, fine)
				}
				after(time.Minute)
				if !first.isOpen() || !second.isOpen() {
					t.Fatalf("cut; open are: %t, %t", first.isOpen(), second.isOpen())
				}
			})
		})
	}
}

// Nor when all were gone for so short a time that the others are asked for the first time when they
// come back.
func TestConnectionsStayInABlip(t *testing.T) {
	for blip := 100 * time.Millisecond; blip <= 900*time.Millisecond; blip += 50 * time.Millisecond {
		t.Run(fmt.Sprint(blip), func(t *testing.T) {
			for phase := time.Duration(0); phase < 1500*time.Millisecond; phase += 30 * time.Millisecond {
				inWorld(t, Config{}, func(t *testing.T, w *world) {
					w.set(one, killed)
					after(7*time.Second + phase/2)
					second := w.connect(t)
					w.set(one, fine)
					after(7*time.Second + phase/3)
					first := w.connect(t)
					for range 3 {
						after(2*time.Second + phase)
						for _, s := range w.order {
							w.set(s, partitioned)
						}
						after(blip)
						for _, s := range w.order {
							w.set(s, fine)
						}
					}
					after(5 * time.Second)
					if !first.isOpen() || !second.isOpen() {
						t.Fatalf("at %s: cut; open are: %t, %t", phase, first.isOpen(), second.isOpen())
					}
				})
			}
		})
	}
}

// One that stood still itself, and sees the time of an answer gone by, first reads the answers that
// came meanwhile.
func TestItsOwnStandstillIsNoSilence(t *testing.T) {
	for i := range 100 { // of two things that are there, either is taken first
		late := 3 * time.Second
		if i%2 == 0 {
			late = 350 * time.Millisecond // 50 ms more than it has
		}
		synctest.Test(t, func(t *testing.T) {
			b := New(Config{Listener: &world{}, Servers: func() []netip.AddrPort { return nil },
				Probe: func(context.Context, netip.AddrPort, int) error {
					<-time.After(250 * time.Millisecond)
					return nil
				}})
			var probes sync.WaitGroup
			defer probes.Wait()
			if err := b.ask(t.Context(), &probes, one, 0, nil, func() { <-time.After(late) }); err != nil {
				t.Fatalf("a server that answered is silent: %v", err)
			}
		})
	}
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

func TestTooManyOpenFilesEndNothing(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		before := w.connect(t)
		for range 3 {
			w.accept <- nil
		}
		if now := w.connect(t); !before.isOpen() || now.server != one.String() {
			t.Errorf("a new connection leads to %q; the one before is open: %t", now.server, before.isOpen())
		}
	})
}

func TestServersThatAreNotUsedAreProbedRarely(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.connect(t)
		w.set(three, killed)
		after(30 * time.Second)
		w.asked()
		after(time.Minute)
		if n := w.asked(); n[one] < 195 || n[one] > 205 || n[two] > 45 || n[three] > 30 {
			t.Fatalf("probes in a minute: %v", n)
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
