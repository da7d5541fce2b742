package hold

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A simulated cluster in virtual time. Machines pause, die, drift and are partitioned. Messages are
// late, and arrive after a partition that they were sent before. Elections follow Raft's rule: a
// leader is elected by a majority, each member of which has a term no higher than before.

type machine struct {
	name   string
	server bool
	clock  func() Instant // goes on in pauses
	ticks  sync.RWMutex
	tick   func() Instant // what clock reads; guarded by ticks

	// Guarded by world.mu.
	alive  bool
	paused bool
	life   *life  // nil while dead
	term   uint64 // of a server; it survives
	proof  proof
}

// proof is when a server's process last took part in a proof of leadership, by its own clock.
type proof struct {
	term         uint64
	last, before Instant // before: in an earlier term
}

// note takes note, and returns the server's term. The caller has the lock.
func (m *machine) note() uint64 {
	if m.term > m.proof.term {
		m.proof.term, m.proof.before = m.term, m.proof.last
	}
	m.proof.last = m.clock()
	return m.term
}

// since is how long it was in no proof of an earlier term. The caller has the lock.
func (m *machine) since() time.Duration {
	if m.proof.term == m.term {
		return m.clock().Sub(m.proof.before)
	}
	return m.clock().Sub(m.proof.last)
}

// life is one process of a machine.
type life struct {
	holder *Holder
	leader *Leader
	ctx    context.Context
	stop   context.CancelFunc
	// over is closed when this server meets a higher term.
	over   chan struct{}
	leads  uint64 // the term in which it believes that it leads
	depose context.CancelFunc
	links  map[*simLink]bool
}

type world struct {
	rand    *rand.Rand
	running sync.WaitGroup
	slow    bool // processes are scheduled late, now and then

	mu       sync.Mutex
	changed  chan struct{} // closed when anything of this changes
	machines []*machine
	cut      map[[2]string]bool // messages from the first do not reach the second
	demands  func(leader string) []Demand
	unsynced bool // no leader knows the demands
}

func newWorld(seed uint64, servers, agents int) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), changed: make(chan struct{}), cut: map[[2]string]bool{}}
	for i := range servers + agents {
		name := "s" + string(rune('1'+i))
		if i >= servers {
			name = "a" + string(rune('1'+i-servers))
		}
		// The rates differ by up to 16 %.
		rate, offset, began := 0.92+0.16*w.rand.Float64(), Instant(w.rand.Int64N(1<<50)), time.Now()
		m := &machine{name: name, server: i < servers, tick: func() Instant {
			return offset + Instant(float64(time.Since(began))*rate)
		}}
		m.clock = func() Instant {
			m.ticks.RLock()
			defer m.ticks.RUnlock()
			return m.tick()
		}
		w.machines = append(w.machines, m)
	}
	return w
}

func (w *world) names(which func(*machine) bool) (out []string) {
	for _, m := range w.machines {
		if which(m) {
			out = append(out, m.name)
		}
	}
	return out
}

func (w *world) machine(name string) *machine {
	for _, m := range w.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

// change runs f with the world's lock, and wakes all that wait for a change.
func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits until a condition holds; false if ctx ended before.
func (w *world) await(ctx context.Context, holds func() bool) bool {
	for {
		w.mu.Lock()
		now, changed := holds(), w.changed
		w.mu.Unlock()
		if now {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (w *world) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.IntN(n)
}

// schedule is a point at which a process may be preempted, or paused.
func (w *world) schedule(ctx context.Context, m *machine) {
	if w.slow {
		switch d := w.intn(200); {
		case d == 0:
			w.sleep(ctx, time.Duration(w.intn(3000))*time.Millisecond) // brief: virtual time
		case d < 20:
			w.sleep(ctx, time.Duration(w.intn(20))*time.Millisecond) // brief: virtual time
		}
	}
	w.await(ctx, func() bool { return !m.paused })
}

func (w *world) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// simLink is one end of a link between processes.
type simLink struct {
	w          *world
	from       *machine
	to         *machine
	ctx        context.Context // of the process that has this end
	in         chan Message
	queue      chan Message // to the other end
	closed     chan struct{}
	closing    sync.Once
	hangup     chan struct{} // the other end has closed, and that has arrived
	hungUp     sync.Once
	other      *simLink
	unregister func()
}

// connect makes a link between two living processes.
func (w *world) connect(from *machine, ofFrom *life, to *machine, ofTo *life) (a, b *simLink) {
	end := func(m, peer *machine, l *life) *simLink {
		s := &simLink{w: w, from: m, to: peer, ctx: l.ctx, in: make(chan Message), queue: make(chan Message, 64),
			closed: make(chan struct{}), hangup: make(chan struct{})}
		w.mu.Lock()
		l.links[s] = true
		w.mu.Unlock()
		s.unregister = func() {
			w.mu.Lock()
			delete(l.links, s)
			w.mu.Unlock()
		}
		return s
	}
	a, b = end(from, to, ofFrom), end(to, from, ofTo)
	a.other, b.other = b, a
	for _, s := range []*simLink{a, b} {
		w.running.Go(s.carry)
	}
	return a, b
}

// carry delivers what is sent at this end, in order and each late. TCP repeats what a partition
// has dropped, also after it has healed.
func (s *simLink) carry() {
	bg, stop := context.WithCancel(context.Background())
	defer stop()
	context.AfterFunc(s.ctx, stop) // a dead machine repeats nothing
	through := func() bool { return !s.w.cut[[2]string{s.from.name, s.to.name}] }
	deliver := func(m Message) bool {
		s.w.sleep(context.Background(), time.Duration(s.w.intn(8))*time.Millisecond) // brief: virtual time
		if !s.w.await(bg, through) {
			return false
		}
		select {
		case s.other.in <- m:
			return true
		case <-s.other.closed:
			return false
		}
	}
	for {
		select {
		case m := <-s.queue:
			if !deliver(m) {
				return
			}
		case <-s.closed:
			for { // what was sent before arrives first
				select {
				case m := <-s.queue:
					if !deliver(m) {
						return
					}
					continue
				default:
				}
				break
			}
			s.w.sleep(context.Background(), time.Duration(s.w.intn(8))*time.Millisecond) // brief: virtual time
			// The kernel of a dead process says so as well, when it is reached.
			wait, end := context.WithTimeout(context.Background(), time.Minute)
			defer end()
			go func() { // ends with either
				select {
				case <-s.other.closed:
					end()
				case <-wait.Done():
				}
			}()
			s.w.await(wait, through)
			s.other.hungUp.Do(func() { close(s.other.hangup) })
			return
		}
	}
}

var errLink = errors.New("the link is closed")

func (s *simLink) Send(m Message) error {
	s.w.schedule(s.ctx, s.from)
	if s.ctx.Err() != nil {
		return errLink
	}
	select {
	case <-s.closed:
		return errLink
	default:
	}
	select {
	case s.queue <- m:
		return nil
	default:
		return errLink // the other end takes nothing
	}
}

func (s *simLink) Receive() (Message, error) {
	select {
	case m := <-s.in:
		s.w.schedule(s.ctx, s.from)
		return m, nil
	case <-s.hangup:
		select {
		case m := <-s.in:
			return m, nil
		default:
		}
		return Message{}, io.EOF
	case <-s.closed:
		return Message{}, errLink
	}
}

func (s *simLink) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		go s.unregister() // the caller may have the world's lock
	})
	return nil
}

// start begins a process on a machine.
func (w *world) start(m *machine) {
	l := &life{links: map[*simLink]bool{}, over: make(chan struct{}), holder: NewHolder(m.clock)}
	l.ctx, l.stop = context.WithCancel(context.Background())
	if m.server {
		l.leader = NewLeader(LeaderConfig{
			Clock:   m.clock,
			Confirm: func(ctx context.Context, term uint64) error { return w.confirm(ctx, m, term) },
			Earlier: func(ctx context.Context, term uint64) (time.Duration, error) { return w.earlier(ctx, m, term) },
			Gone:    func(ctx context.Context, node string) bool { return w.gone(ctx, m, node) },
			Demands: func() ([]Demand, bool, <-chan struct{}) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.unsynced {
					return nil, true, w.changed
				}
				return w.demands(m.name), false, w.changed
			},
		})
	}
	n := NewNode(
		NodeConfig{Holder: l.holder, Clock: m.clock, Dial: func(ctx context.Context) (Link, <-chan struct{}, error) {
			return w.dial(ctx, m, l)
		}})
	w.change(func() {
		m.alive, m.paused, m.life = true, false, l
		m.proof = proof{last: m.clock(), before: m.clock()}
	})
	w.running.Go(func() {
		if err := n.Run(l.ctx); err != nil {
			panic(err)
		}
	})
}

// isolate cuts a machine off from all others.
func (w *world) isolate(m *machine) {
	w.change(func() {
		for _, o := range w.machines {
			if o != m {
				w.cut[[2]string{m.name, o.name}], w.cut[[2]string{o.name, m.name}] = true, true
			}
		}
	})
}

// kill ends a process without a word of its own.
func (w *world) kill(m *machine) {
	var l *life
	w.change(func() {
		l, m.life, m.alive, m.paused = m.life, nil, false, false
		for s := range l.links {
			s.Close()
		}
	})
	l.stop()
}

// dial connects a node with a server that believes that it leads; of several with any. A server
// knows of later terms. An agent asks all at once, so that a paused one does not answer first.
func (w *world) dial(ctx context.Context, m *machine, l *life) (Link, <-chan struct{}, error) {
	w.schedule(ctx, m)
	w.mu.Lock()
	var leaders []*machine
	for _, s := range w.machines {
		if s.life != nil && s.life.leads != 0 &&
			(s == m || !w.cut[[2]string{m.name, s.name}] && !w.cut[[2]string{s.name, m.name}]) {
			leaders = append(leaders, s)
		}
	}
	if m.server {
		leaders = slices.DeleteFunc(leaders, func(s *machine) bool { return s.life.leads < m.term })
	} else {
		awake := slices.DeleteFunc(slices.Clone(leaders), func(s *machine) bool { return s.paused })
		if len(awake) > 0 {
			leaders = awake
		}
	}
	if len(leaders) == 0 {
		w.mu.Unlock()
		return nil, nil, errors.New("no leader is reached")
	}
	to := leaders[w.rand.IntN(len(leaders))]
	ofTo, over := to.life, l.over
	w.mu.Unlock()
	if !m.server {
		over = nil
	}
	a, b := w.connect(m, l, to, ofTo)
	w.running.Go(func() { _ = ofTo.leader.Serve(ofTo.ctx, m.name, b) })
	return a, over, nil
}

// gone is a question to the kernel of a machine, which answers in pauses as well.
func (w *world) gone(ctx context.Context, asker *machine, node string) bool {
	w.schedule(ctx, asker)
	w.sleep(ctx, time.Duration(w.intn(8))*time.Millisecond) // brief: virtual time
	w.mu.Lock()
	gone := !w.machine(node).alive && !w.cut[[2]string{asker.name, node}] && !w.cut[[2]string{node, asker.name}]
	w.mu.Unlock()
	w.sleep(ctx, time.Duration(w.intn(8))*time.Millisecond) // brief: virtual time
	return gone && ctx.Err() == nil
}

// confirm asks the other servers for their term.
func (w *world) confirm(ctx context.Context, m *machine, term uint64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // brief: virtual time
	defer cancel()
	servers := w.names(func(m *machine) bool { return m.server })
	w.mu.Lock()
	m.note()
	w.mu.Unlock()
	answers := make(chan bool, len(servers))
	for _, name := range servers {
		peer := w.machine(name)
		if peer == m {
			continue
		}
		w.running.Go(func() {
			w.sleep(ctx, time.Duration(w.intn(8))*time.Millisecond) // brief: virtual time
			ok := w.await(ctx, func() bool {
				return !w.cut[[2]string{m.name, name}] && peer.alive && !peer.paused
			})
			w.mu.Lock()
			ok = ok && peer.alive && peer.note() <= term
			w.mu.Unlock()
			w.sleep(ctx, time.Duration(w.intn(8))*time.Millisecond) // brief: virtual time
			answers <- ok && w.await(ctx, func() bool { return !w.cut[[2]string{name, m.name}] })
		})
	}
	agree := 1
	for range len(servers) - 1 {
		if <-answers {
			agree++
		}
		if agree > len(servers)/2 {
			w.schedule(ctx, m)
			return nil
		}
	}
	return errors.New("no quorum")
}

// earlier asks a quorum when it last took part in a proof of an earlier term.
func (w *world) earlier(ctx context.Context, m *machine, term uint64) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // brief: virtual time
	defer cancel()
	servers := w.names(func(m *machine) bool { return m.server })
	answers := make(chan time.Duration, len(servers))
	for _, name := range servers {
		peer := w.machine(name)
		w.running.Go(func() {
			age := time.Duration(-1)
			w.sleep(ctx, time.Duration(w.intn(8))*time.Millisecond) // brief: virtual time
			there := w.await(ctx, func() bool {
				return !w.cut[[2]string{m.name, name}] && peer.alive && !peer.paused
			})
			w.mu.Lock()
			if there && peer.alive && peer.term == term {
				age = peer.since()
			}
			w.mu.Unlock()
			w.sleep(ctx, time.Duration(w.intn(8))*time.Millisecond) // brief: virtual time
			if !w.await(ctx, func() bool { return !w.cut[[2]string{name, m.name}] }) {
				age = -1
			}
			answers <- age
		})
	}
	least, agree := time.Hour, 0
	for range servers {
		if age := <-answers; age >= 0 {
			least = min(least, age)
			agree++
		}
		if agree > len(servers)/2 {
			w.schedule(ctx, m)
			return least, nil
		}
	}
	return 0, errors.New("no quorum")
}

// elect makes a server the leader if a majority votes for it. Those that vote meet the new term.
func (w *world) elect(m *machine) bool {
	elected := false
	var lead func()
	w.change(func() {
		if m.life == nil || m.paused {
			return
		}
		var voters []*machine
		term, servers := uint64(0), 0
		for _, s := range w.machines {
			if !s.server {
				continue
			}
			servers++
			if s == m ||
				s.life != nil && !s.paused && !w.cut[[2]string{m.name, s.name}] && !w.cut[[2]string{s.name, m.name}] {
				voters = append(voters, s)
				term = max(term, s.term)
			}
		}
		if elected = len(voters) > servers/2; !elected {
			return
		}
		term++
		for _, s := range voters {
			w.meet(s, term)
		}
		l := m.life
		l.leads = term
		ctx, depose := context.WithCancel(l.ctx)
		l.depose = depose
		lead = func() {
			w.schedule(ctx, m)
			if ctx.Err() == nil {
				_ = l.leader.Lead(ctx, term)
			}
		}
	})
	if elected {
		w.running.Go(lead)
	}
	return elected
}

// meet tells a server of a higher term. The caller has the lock.
func (w *world) meet(s *machine, term uint64) {
	if s.term >= term {
		return
	}
	s.term = term
	if l := s.life; l != nil {
		if l.leads != 0 {
			l.leads = 0
			l.depose()
		}
		close(l.over)
		l.over = make(chan struct{})
	}
}

// heartbeats lets servers that reach each other meet the highest term, as Raft's do.
func (w *world) heartbeats() {
	w.change(func() {
		for _, a := range w.machines {
			for _, b := range w.machines {
				if a.server && b.server && a.life != nil && b.life != nil && !a.paused && !b.paused &&
					!w.cut[[2]string{a.name, b.name}] {
					w.meet(b, a.term)
				}
			}
		}
	})
}

// answering returns the machines that answer for an address now.
func (w *world) answering(addr netip.Addr) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.life != nil && !m.paused && m.life.holder.Holds(addr) {
			out = append(out, m.name)
		}
	}
	return out
}

// end kills all and waits for their goroutines.
func (w *world) end() {
	for _, m := range w.machines {
		if m.life != nil {
			w.kill(m)
		}
	}
	w.change(func() { clear(w.cut) })
	w.running.Wait()
}
