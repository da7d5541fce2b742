package store

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// links are relays between members, one for each ordered pair: member a dials b at an address that
// only a uses. Bytes from a to b, on connections that either of the two has opened, pass the gate
// of that direction, which can be shut and can be slow.
//
// A shut gate is a lost route: nothing passes, and connections are neither accepted by the other
// side nor ended; sent bytes arrive when the gate opens. A member that is down refuses connections,
// through a relay too.
type links struct {
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	gates  map[[2]int]*gate
	relays map[[2]int]*relay
}

// gate is one direction. Its fields belong to links.mu.
type gate struct {
	shut    bool
	delay   time.Duration
	changed chan struct{} // closed with every change
}

// relay listens for one ordered pair while the member that it leads to is up.
type relay struct {
	listen, target string
	listener       net.Listener // nil while it is down
}

func newLinks() *links {
	l := &links{gates: make(map[[2]int]*gate), relays: make(map[[2]int]*relay)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// add makes the relay from one member to another, which is down.
func (l *links) add(from, to int, listen, target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.relays[[2]int{from, to}] = &relay{listen: listen, target: target}
	for _, d := range [][2]int{{from, to}, {to, from}} {
		if l.gates[d] == nil {
			l.gates[d] = &gate{changed: make(chan struct{})}
		}
	}
}

// up makes all relays to a member accept, and down makes them refuse.
func (l *links) up(to int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pair, r := range l.relays {
		if pair[1] != to || r.listener != nil {
			continue
		}
		listener, err := net.Listen("tcp", r.listen)
		if err != nil {
			return err
		}
		r.listener = listener
		l.running.Go(func() { l.accept(pair, listener, r.target) }) // ends with the listener
	}
	return nil
}

func (l *links) down(to int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pair, r := range l.relays {
		if pair[1] == to && r.listener != nil {
			r.listener.Close()
			r.listener = nil
		}
	}
}

// set changes one direction.
func (l *links) set(from, to int, shut bool, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[[2]int{from, to}]
	if g == nil || g.shut == shut && g.delay == delay {
		return
	}
	g.shut, g.delay = shut, delay
	close(g.changed)
	g.changed = make(chan struct{})
}

func (l *links) heal() {
	l.mu.Lock()
	pairs := make([][2]int, 0, len(l.gates))
	for pair := range l.gates {
		pairs = append(pairs, pair)
	}
	l.mu.Unlock()
	for _, pair := range pairs {
		l.set(pair[0], pair[1], false, 0)
	}
}

// pass waits until the gate is open and bytes that came at that time are due. It fails when
// ctx ends.
func (l *links) pass(ctx context.Context, direction [2]int, came time.Time) error {
	for {
		l.mu.Lock()
		g := l.gates[direction]
		shut, changed, wait := g.shut, g.changed, time.Until(came.Add(g.delay))
		l.mu.Unlock()
		if !shut && wait <= 0 {
			return ctx.Err()
		}
		var due <-chan time.Time
		if !shut {
			due = time.After(wait) // brief: it is how slow the link is to be
		}
		select {
		case <-changed:
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// close ends all connections and waits.
func (l *links) close() {
	l.cancel()
	l.mu.Lock()
	for _, r := range l.relays {
		if r.listener != nil {
			r.listener.Close()
			r.listener = nil
		}
	}
	l.mu.Unlock()
	l.running.Wait()
}

func (l *links) accept(pair [2]int, listener net.Listener, target string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			<-time.After(10 * time.Millisecond) // brief: out of file descriptors: others end, then it goes on
			continue
		}
		l.running.Go(func() { l.relay(pair, conn.(*net.TCPConn), target) }) // ends with the connection
	}
}

// relay carries one connection until either side has ended it.
func (l *links) relay(pair [2]int, near *net.TCPConn, target string) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	defer near.Close()
	back := [2]int{pair[1], pair[0]}
	if l.pass(ctx, pair, time.Now()) != nil || l.pass(ctx, back, time.Now()) != nil {
		return
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		near.SetLinger(0) // the member is down: reset
		return
	}
	far := conn.(*net.TCPConn)
	defer far.Close()
	stop := context.AfterFunc(ctx, func() {
		near.Close()
		far.Close()
	})
	defer stop()
	var flowing sync.WaitGroup
	flowing.Go(func() { l.flow(ctx, cancel, pair, near, far) })
	flowing.Go(func() { l.flow(ctx, cancel, back, far, near) })
	flowing.Wait()
}

type chunk struct {
	data []byte
	came time.Time
}

// queuedChunks bounds the chunks on their way in one direction of one connection.
const queuedChunks = 64

// flow carries one direction of a connection. An error ends the connection.
func (l *links) flow(ctx context.Context, cancel context.CancelFunc, direction [2]int, from, to *net.TCPConn) {
	queue := make(chan chunk, queuedChunks)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(queue)
		for {
			data := make([]byte, 16<<10)
			n, err := from.Read(data)
			if n > 0 {
				select {
				case queue <- chunk{data[:n], time.Now()}:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	defer reading.Wait()
	for c := range queue {
		if l.pass(ctx, direction, c.came) != nil {
			return
		}
		if _, err := to.Write(c.data); err != nil {
			cancel()
			return
		}
	}
	if l.pass(ctx, direction, time.Now()) == nil { // the end is a message too
		to.CloseWrite()
	}
}
