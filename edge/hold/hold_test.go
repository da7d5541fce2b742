package hold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/loglimit"
	"github.com/barque/barque/internal/syncbuf"
)

var (
	apiAddr = netip.MustParseAddr("10.0.0.10")
	first   = netip.MustParseAddr("10.0.0.11")
	second  = netip.MustParseAddr("2001:db8::12")
	third   = netip.MustParseAddr("10.0.0.13")
	all     = []netip.Addr{apiAddr, first, second, third}
)

// usualDemands has the API's address at the leader, and three of Services.
func usualDemands(w *world, excluded func(node string) bool) func(string) []Demand {
	servers := w.names(func(m *machine) bool { return m.server })
	every := w.names(func(*machine) bool { return true })
	return func(leader string) []Demand {
		eligible := slices.DeleteFunc(slices.Clone(every), excluded)
		return []Demand{
			{Addr: apiAddr, Eligible: []string{leader}, Possible: servers},
			{Addr: first, Eligible: eligible, Possible: every},
			{Addr: second, Eligible: eligible, Possible: every},
			{Addr: third, Eligible: eligible, Possible: every},
		}
	}
}

// watch looks at all addresses until stop is closed, and fails when two answer for one.
func watch(t *testing.T, w *world, what string, stop <-chan struct{}) {
	for {
		for _, addr := range all {
			if who := w.answering(addr); len(who) > 1 {
				t.Errorf("%s: %v answer for %v", what, who, addr)
				return
			}
		}
		select {
		case <-time.After(time.Millisecond + time.Duration(w.intn(2000))*time.Microsecond):
		case <-stop:
			return
		}
	}
}

// until waits until a condition holds, and returns how long that took; false after a minute.
func until(holds func() bool) (time.Duration, bool) {
	began := time.Now()
	for !holds() {
		if time.Since(began) > time.Minute {
			return time.Since(began), false
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began), true
}

func (w *world) allAnswered() bool {
	return !slices.ContainsFunc(all, func(a netip.Addr) bool { return len(w.answering(a)) != 1 })
}

func simulate(t *testing.T, seed uint64, body func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed, 3, 2)
		none := func(string) bool { return false }
		w.demands = usualDemands(w, none)
		for _, m := range w.machines {
			w.start(m)
		}
		if !w.elect(w.machines[0]) {
			t.Fatal("no leader")
		}
		stop := make(chan struct{})
		w.running.Go(func() { watch(t, w, fmt.Sprintf("seed %d", seed), stop) })
		body(w)
		close(stop)
		w.end()
	})
}

// TestNeverTwo breaks a cluster in every way at random. Two nodes never answer for one address, and
// when the faults have ended each address has a node within the stated time.
func TestNeverTwo(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		simulate(t, seed, func(w *world) {
			w.slow = seed%2 == 1
			excluded := ""
			for range 60 {
				m := w.machines[w.intn(len(w.machines))]
				n := w.machines[w.intn(len(w.machines))]
				switch w.intn(9) {
				case 0:
					if m.life != nil {
						w.kill(m)
					}
				case 1, 2:
					if m.life == nil {
						w.start(m)
					}
				case 3:
					w.change(func() { m.paused = m.life != nil })
				case 4:
					w.change(func() { m.paused = false })
				case 5: // one direction, or both
					both := w.intn(3) > 0
					w.change(func() {
						w.cut[[2]string{m.name, n.name}] = true
						if both {
							w.cut[[2]string{n.name, m.name}] = true
						}
						delete(w.cut, [2]string{m.name, m.name})
					})
				case 6: // alone
					w.isolate(m)
				case 7:
					w.change(func() { clear(w.cut) })
				case 8:
					excluded = m.name
					now := excluded
					w.change(func() { w.demands = usualDemands(w, func(node string) bool { return node == now }) })
				}
				if w.intn(3) == 0 {
					w.elect(w.machines[w.intn(3)])
				}
				if w.intn(2) == 0 {
					w.heartbeats()
				}
				time.Sleep(time.Duration(w.intn(1500)) * time.Millisecond)
			}
			w.slow = false
			w.change(func() {
				clear(w.cut)
				for _, m := range w.machines {
					m.paused = false
				}
			})
			for _, m := range w.machines {
				if m.life == nil {
					w.start(m)
				}
			}
			w.heartbeats()
			w.elect(w.machines[w.intn(3)])
			if took, ok := until(w.allAnswered); !ok || took > 2*(Duration+Margin) {
				t.Errorf("seed %d: answered again after %s: %v", seed, took, ok)
			}
		})
	}
}

func settle(t *testing.T, w *world) {
	t.Helper()
	if took, ok := until(w.allAnswered); !ok || took > Duration+Margin+time.Second {
		t.Fatalf("a new cluster's addresses are answered after %s: %v", took, ok)
	}
}

// victim returns a machine that does not lead and holds an address, and that address.
func victim(w *world) (*machine, netip.Addr) {
	for _, addr := range all {
		for _, name := range w.answering(addr) {
			if m := w.machine(name); m.life.leads == 0 {
				return m, addr
			}
		}
	}
	return nil, netip.Addr{}
}

func movedFrom(w *world, m *machine, addr netip.Addr) func() bool {
	return func() bool {
		who := w.answering(addr)
		return len(who) == 1 && who[0] != m.name
	}
}

// TestADeadProcessIsReplacedAtOnce and a machine that is silent after the time of its hold.
func TestFailover(t *testing.T) {
	for what, c := range map[string]struct {
		fault func(w *world, m *machine)
		limit time.Duration
	}{
		"killed":  {func(w *world, m *machine) { w.kill(m) }, time.Second},
		"paused":  {func(w *world, m *machine) { w.change(func() { m.paused = true }) }, 3 * time.Second},
		"cut off": {func(w *world, m *machine) { w.isolate(m) }, 3 * time.Second},
		"excluded": {func(w *world, m *machine) {
			w.change(func() { w.demands = usualDemands(w, func(node string) bool { return node == m.name }) })
		}, time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			for seed := range uint64(8) {
				simulate(t, seed, func(w *world) {
					settle(t, w)
					time.Sleep(time.Duration(w.intn(3000)) * time.Millisecond)
					m, addr := victim(w)
					if m == nil {
						return // the leader has all of them
					}
					c.fault(w, m)
					if took, ok := until(movedFrom(w, m, addr)); !ok || took > c.limit {
						t.Errorf("seed %d: %v of %s is answered again after %s: %v", seed, addr, m.name, took, ok)
					}
				})
			}
		})
	}
}

// TestTheAPIsAddressFollowsTheLeader after the leader's process was killed, and after it handed
// leadership over.
func TestTheAPIsAddressFollowsTheLeader(t *testing.T) {
	for what, kill := range map[string]bool{"killed": true, "handed over": false} {
		t.Run(what, func(t *testing.T) {
			for seed := range uint64(8) {
				simulate(t, seed, func(w *world) {
					settle(t, w)
					old, next := w.machines[0], w.machines[1]
					if kill {
						w.kill(old)
					}
					if !w.elect(next) {
						t.Fatal("not elected")
					}
					if took, ok := until(movedFrom(w, old, apiAddr)); !ok || took > 500*time.Millisecond {
						t.Errorf("seed %d: %s after the election: %v", seed, took, ok)
					}
					if !kill {
						return
					}
					if took, ok := until(w.allAnswered); !ok || took > time.Second {
						t.Errorf("seed %d: all addresses after %s: %v", seed, took, ok)
					}
				})
			}
		})
	}
}

// TestASilentLeaderIsReplaced: it holds addresses, and falls silent. Its successor is elected after
// a while, and the silence counts from before that.
func TestASilentLeaderIsReplaced(t *testing.T) {
	for what, silence := range map[string]func(w *world, m *machine){
		"paused":  func(w *world, m *machine) { w.change(func() { m.paused = true }) },
		"cut off": func(w *world, m *machine) { w.isolate(m) },
	} {
		t.Run(what, func(t *testing.T) {
			for seed := range uint64(8) {
				simulate(t, seed, func(w *world) {
					settle(t, w)
					time.Sleep(time.Duration(w.intn(3000)) * time.Millisecond)
					old := w.machines[0]
					silence(w, old)
					fault := time.Now()
					time.Sleep(1200 * time.Millisecond) // as Raft takes to find it out
					if !w.elect(w.machines[1]) {
						t.Fatal("not elected")
					}
					for what, holds := range map[string]func() bool{
						"the API's address": movedFrom(w, old, apiAddr), "all": w.allAnswered,
					} {
						if _, ok := until(holds); !ok || time.Since(fault) > 3*time.Second {
							t.Errorf("seed %d: %s after %s: %v", seed, what, time.Since(fault), ok)
						}
					}
				})
			}
		})
	}
}

// TestATermThatGoesOn: Lead is called again in the same term, as after a restore. The bound for
// earlier terms says nothing about the grants of this one.
func TestATermThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		asked := 0
		l := NewLeader(LeaderConfig{
			Clock:   func() Instant { return Instant(time.Since(began)) },
			Confirm: func(context.Context, uint64) error { return nil },
			Earlier: func(context.Context, uint64) (time.Duration, error) { asked++; return time.Hour, nil },
			Gone:    func(context.Context, string) bool { return false },
			Demands: func() ([]Demand, bool, <-chan struct{}) {
				return []Demand{{Addr: first, Eligible: []string{"a"}, Possible: []string{"a", "b"}}}, false, nil
			},
		})
		for i, want := range []bool{true, false} {
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- l.Lead(ctx, 7) }()
			synctest.Wait()
			l.mu.Lock()
			l.ledger.open(uint64(i+1), "a")
			l.visits[uint64(i+1)] = visit{make(chan struct{}, 1), &lateLink{}}
			l.ledger.hear(l.config.Clock(), uint64(i+1), nil)
			if got := l.ledger.due(l.config.Clock(), "a"); got != want {
				t.Errorf("call %d of Lead: due at once is %v, want %v", i+1, got, want)
			}
			l.mu.Unlock()
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestNothingMovesWithoutNeed: neither a new leader nor a node that comes back moves an address,
// and an address is answered all the time while leadership changes hands.
func TestNothingMovesWithoutNeed(t *testing.T) {
	simulate(t, 3, func(w *world) {
		settle(t, w)
		w.kill(w.machines[4])
		time.Sleep(2 * time.Second)
		settle(t, w)
		before := map[netip.Addr][]string{}
		services := all[1:]
		for _, addr := range services {
			before[addr] = w.answering(addr)
		}
		w.start(w.machines[4])
		for i := range 20 {
			w.elect(w.machines[i%3])
			for range 1000 {
				for _, addr := range services {
					if now := w.answering(addr); !slices.Equal(now, before[addr]) {
						t.Fatalf("%v moves from %v to %v", addr, before[addr], now)
					}
				}
				time.Sleep(time.Millisecond)
			}
		}
	})
}

// TestALeaderWithoutDemandsTakesNothingAway: a server that has just started leads before it has
// read the Services.
func TestALeaderWithoutDemandsTakesNothingAway(t *testing.T) {
	simulate(t, 4, func(w *world) {
		settle(t, w)
		before := map[netip.Addr][]string{}
		for _, addr := range all[1:] {
			before[addr] = w.answering(addr)
		}
		w.change(func() { w.unsynced = true })
		w.elect(w.machines[1])
		for range 10000 {
			for addr, who := range before {
				if now := w.answering(addr); !slices.Equal(now, who) {
					t.Fatalf("%v moves from %v to %v", addr, who, now)
				}
			}
			time.Sleep(time.Millisecond)
		}
		w.change(func() { w.unsynced = false })
		settle(t, w)
	})
}

// TestALonelyHolderStops: a node that reaches nobody answers no longer than Duration, by its own
// clock, also when it wakes up late.
func TestALonelyHolderStops(t *testing.T) {
	simulate(t, 5, func(w *world) {
		settle(t, w)
		m, addr := victim(w)
		if m == nil {
			t.Fatal("the leader has all addresses")
		}
		cutAt := m.clock()
		w.isolate(m)
		for m.life.holder.Holds(addr) {
			time.Sleep(time.Millisecond)
		}
		if took := m.clock().Sub(cutAt); took > Duration+5*time.Millisecond || took < Duration-2*Renewal {
			t.Errorf("it stops %s after it was cut off", took)
		}
	})
}

// TestClocksOfDifferentRates: the holder's clock is slow and the leader's fast, as far apart as
// Margin covers, and the holder is cut off.
func TestClocksOfDifferentRates(t *testing.T) {
	for round := range uint64(4) {
		simulate(t, round, func(w *world) {
			settle(t, w)
			m, addr := victim(w)
			if m == nil {
				return
			}
			rate := map[bool]float64{false: 1.09, true: 0.91}
			began, offset := time.Now(), map[*machine]Instant{}
			for _, o := range w.machines {
				offset[o] = o.clock()
			}
			for _, o := range w.machines {
				o.ticks.Lock()
				o.tick = func() Instant { return offset[o] + Instant(float64(time.Since(began))*rate[o == m]) }
				o.ticks.Unlock()
			}
			time.Sleep(5 * time.Second) // grants are counted by these clocks from now on
			w.isolate(m)
			if took, ok := until(movedFrom(w, m, addr)); !ok || took > 3*time.Second {
				t.Errorf("seed %d: after %s: %v", round, took, ok)
			}
		})
	}
}

// lateLink answers each request late.
type lateLink struct {
	answers chan Message
	late    time.Duration
}

func (l *lateLink) Send(m Message) error {
	if m.Kind == Request {
		time.AfterFunc(l.late,
			func() { l.answers <- Message{Kind: Answer, Granted: []netip.Addr{first}, For: Duration} })
	}
	return nil
}

func (l *lateLink) Receive() (Message, error) { return <-l.answers, nil }
func (l *lateLink) Close() error              { return nil }

// TestAHoldIsCountedFromBeforeTheRequest: however late the answer comes, the hold ends Duration
// after the request was sent.
func TestAHoldIsCountedFromBeforeTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		clock := func() Instant { return Instant(time.Since(began)) }
		h := NewHolder(clock)
		link := &lateLink{answers: make(chan Message, 10), late: Duration * 3 / 4}
		link.answers <- Message{Kind: Hello, Term: 1, Session: 1}
		n := NewNode(
			NodeConfig{Holder: h, Clock: clock,
				Dial: func(context.Context) (Link, <-chan struct{}, error) { return link, nil, nil }})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		time.Sleep(Duration*3/4 + time.Millisecond)
		if !h.Holds(first) {
			t.Error("the answer is not taken")
		}
		time.Sleep(Duration / 4)
		if h.Holds(first) {
			t.Error("the hold lasts longer than Duration after the request")
		}
		stop()
		if err := <-ended; err != nil || h.Holds(first) {
			t.Error(err, "and held after the end:", h.Holds(first))
		}
		for range 2 { // the reader of the session takes what comes yet
			link.answers <- Message{}
		}
	})
}

// TestNothingIsSentForADroppedAddress: the holder gives an address up only when its answer has been
// sent, and not while a process that is short of CPU is about to send it.
func TestNothingIsSentForADroppedAddress(t *testing.T) {
	h := NewHolder(func() Instant { return 1 })
	var limits []Instant
	h.Limit(func(end Instant) { limits = append(limits, end) })
	h.take([]netip.Addr{first, second}, 10)
	dropped := make(chan struct{})
	if !h.Answer(first, func() {
		go func() { // waits for the answer
			h.take([]netip.Addr{second}, 12)
			close(dropped)
		}()
		if h.answering.TryLock() {
			t.Error("addresses may change while an answer is sent")
			h.answering.Unlock()
		}
		if !h.Holds(first) || limits[len(limits)-1] != 10 {
			t.Errorf("dropped before the answer was sent; limits %v", limits)
		}
	}) {
		t.Error("no answer for a held address")
	}
	<-dropped
	if h.Answer(first, func() { t.Error("sent for a dropped address") }) {
		t.Error("an answer for a dropped address")
	}
	h.Drop()
	if want := []Instant{0, 10, 12, 0}; !slices.Equal(limits, want) {
		t.Errorf("limits %v, want %v", limits, want)
	}
}

// TestAProofOfDeathIsNotOfTheNextProcess: a node that has restarted while the question was on its
// way keeps what it was granted since.
func TestAProofOfDeathIsNotOfTheNextProcess(t *testing.T) {
	l := newLedger(0)
	l.demand([]Demand{{Addr: first, Eligible: []string{"a"}, Possible: []string{"a"}}}, false)
	l.open(1, "a")
	l.hear(5, 1, nil)
	l.grant(5, 1)
	if l.gone("a", 4); len(l.grants) != 1 {
		t.Error("a question from before the grant ends it")
	}
	if l.gone("a", 6); len(l.grants) != 0 {
		t.Error("a dead node keeps its grant")
	}
}

// TestALedgerOfANewTerm: what a leader of an earlier term has granted is nobody's in a new
// term before it was reported, or the time is over.
func TestALedgerOfANewTerm(t *testing.T) {
	l := newLedger(0)
	l.demand([]Demand{{Addr: first, Eligible: []string{"a", "b"}, Possible: []string{"a", "b"}}}, false)
	l.open(1, "a")
	if _, ok := l.hear(1, 1, nil); !ok {
		t.Fatal("a request is refused")
	}
	if got, _ := l.grant(1, 1); got != nil {
		t.Errorf("granted %v before b was heard", got)
	}
	l.open(2, "b")
	if _, ok := l.hear(2, 2, []netip.Addr{first}); !ok {
		t.Fatal("a request is refused")
	}
	if got, _ := l.grant(3, 1); got != nil {
		t.Errorf("granted %v to a although b holds it", got)
	}
	if got, fresh := l.grant(3, 2); !slices.Equal(got, []netip.Addr{first}) || fresh != nil {
		t.Errorf("b keeps %v, new %v", got, fresh)
	}
	if double, _ := l.hear(Instant(Duration+Margin)+4, 1, []netip.Addr{second}); !slices.Equal(double,
		[]netip.Addr{second}) {
		t.Errorf("a claims what nobody has granted: %v", double)
	}
}

// TestClaimsAtATermsBeginning: a node that cannot have been granted an address blocks it for as
// long as an earlier leader's grant may last, and not longer; it takes it from no node that can.
func TestClaimsAtATermsBeginning(t *testing.T) {
	limit, addr := Instant(Duration+Margin), []netip.Addr{first}
	fresh := func() *ledger {
		l := newLedger(0)
		l.open(1, "thief")
		l.open(2, "holder")
		l.open(3, "other")
		return l
	}
	demands := []Demand{{Addr: first, Eligible: []string{"holder", "other"}, Possible: []string{"holder", "other"}}}

	l := fresh()
	l.demand(demands, false)
	if unfounded, _ := l.hear(limit-2, 1, addr); !slices.Equal(unfounded, addr) {
		t.Errorf("unfounded are %v", unfounded)
	}
	l.hear(limit-2, 2, nil)
	l.hear(limit-2, 3, nil)
	if due := l.due(limit-1, "holder") || l.due(limit-1, "other"); due {
		t.Error("granted while a node that is not possible any more may hold it")
	}
	if due := l.due(limit+1, "holder") || l.due(limit+1, "other"); !due {
		t.Error("a claim blocks the address for longer than an earlier grant can last")
	}

	l = fresh()
	l.demand(demands, false)
	l.hear(1, 1, addr)
	if unfounded, _ := l.hear(2, 2, addr); unfounded != nil {
		t.Errorf("the holder's report is unfounded: %v", unfounded)
	}
	if got, fresh := l.grant(2, 2); !slices.Equal(got, addr) || fresh != nil {
		t.Errorf("the holder is granted %v, new %v", got, fresh)
	}
	if unfounded, _ := l.hear(3, 3, addr); !slices.Equal(unfounded, addr) || l.due(3, "other") {
		t.Errorf("another one takes it: %v", unfounded)
	}
	if unfounded, _ := l.hear(4, 1, addr); !slices.Equal(unfounded, addr) || l.grants[first].node != "holder" {
		t.Errorf("the thief takes it back: %v", unfounded)
	}

	// The demands become known after the claim. Until then nothing is taken away from the node.
	l = fresh()
	l.demand(nil, true)
	l.hear(1, 1, addr)
	if got, _ := l.grant(1, 1); !slices.Equal(got, addr) {
		t.Errorf("while no demand is known: %v", got)
	}
	l.demand(demands, false)
	if unfounded, _ := l.hear(2, 2, addr); unfounded != nil || !l.due(2, "holder") {
		t.Errorf("the holder's report is unfounded: %v", unfounded)
	}
}

// TestClaimsAreLoggedInFewLines: a message may have thousands of addresses, and there are many
// messages.
func TestClaimsAreLoggedInFewLines(t *testing.T) {
	var out syncbuf.Buffer
	l := NewLeader(LeaderConfig{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	claims := make([]netip.Addr, 20000)
	for i := range claims {
		claims[i] = netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
	}
	for range 100 {
		l.unfounded("thief", claims)
	}
	lines := strings.Count(out.String(), "\n")
	if lines == 0 || lines > loglimit.Burst || len(out.String()) > 1000*lines ||
		!strings.Contains(out.String(), "count=20000") {
		t.Errorf("%d lines of %d bytes", lines, len(out.String()))
	}
}

// TestAnEarlierSessionIsNotHeard: a late request would give back what a newer session was granted.
func TestAnEarlierSessionIsNotHeard(t *testing.T) {
	l := newLedger(0)
	l.demand([]Demand{{Addr: first, Eligible: []string{"a"}, Possible: []string{"a"}}}, false)
	l.open(1, "a")
	l.open(2, "a")
	l.hear(1, 2, nil)
	if got, _ := l.grant(1, 2); len(got) != 1 {
		t.Fatalf("granted %v", got)
	}
	if _, ok := l.hear(2, 1, nil); ok || len(l.grants) != 1 {
		t.Errorf("heard %v, grants %v", ok, l.grants)
	}
}

func TestAddressesSpread(t *testing.T) {
	nodes, count := []string{"a", "b", "c", "d"}, map[string]int{}
	moved := 0
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)})
		was := choose(addr, nodes)
		count[was]++
		if now := choose(addr, nodes[:3]); was != "d" && now != was {
			t.Fatalf("%v moves from %s to %s when d leaves", addr, was, now)
		}
		if choose(addr, append([]string{"e"}, nodes...)) != was {
			moved++
		}
	}
	for _, n := range nodes {
		if count[n] < 200 || count[n] > 300 {
			t.Errorf("of 1000 addresses %v", count)
		}
	}
	if moved < 150 || moved > 250 {
		t.Errorf("a fifth node takes %d", moved)
	}
	if got := choose(first, nil); got != "" {
		t.Errorf("without a candidate: %q", got)
	}
}

// TestTheBootClock goes on, and is no wall clock.
func TestTheBootClock(t *testing.T) {
	if a, b := Boot(), Boot(); a <= 0 || b < a {
		t.Errorf("%d, then %d", a, b)
	}
	if h := NewHolder(Boot); h.Holds(first) {
		t.Error("a new holder holds something")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewLeader(
		LeaderConfig{Clock: Boot, Demands: func() ([]Demand, bool, <-chan struct{}) { return nil, false, nil }}).Lead(
		ctx, 1); err != nil {
		t.Error(err)
	}
}

// FuzzParse: a message of a peer is refused, or stays the same when it is sent on.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"kind":"hello","term":7,"session":3}`,
		`{"kind":"request","term":7,"session":3,"held":["192.0.2.1","2001:db8::1","fe80::1%eth0"]}`,
		`{"kind":"answer","granted":["192.0.2.1"],"for":2000000000}`, `{"kind":"wake"}`, `{"kind":"answer","for":-1}`,
		`{"held":[null,""]}`, `[]`, `null`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parse(line)
		if err != nil {
			if !errors.Is(err, errMessage) {
				t.Errorf("%q: %v", line, err)
			}
			return
		}
		if m.For < 0 || m.For > Duration {
			t.Errorf("a grant for %s", m.For)
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := parse(again); err != nil || n.Kind != m.Kind || n.Term != m.Term || n.Session != m.Session ||
			n.For != m.For ||
			!slices.Equal(n.Held, m.Held) || !slices.Equal(n.Granted, m.Granted) {
			t.Errorf("%q became %q: %v", line, again, err)
		}
	})
}
