package pulse_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/pulse"
)

var errNoAnswer = errors.New("no answer")

// nodes are those that a Pulse asks. Each answers after a millisecond, or not at all.
type nodes struct {
	mu      sync.Mutex
	names   []string
	dead    map[string]bool
	lose    map[string]int // how many of the next packets get lost
	asked   map[string]int
	last    time.Time
	changed chan struct{}
}

func newNodes(names ...string) *nodes {
	return &nodes{names: names, dead: map[string]bool{}, lose: map[string]int{}, asked: map[string]int{},
		changed: make(chan struct{})}
}

func (n *nodes) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.names)
}

func (n *nodes) change() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *nodes) ask(name string) error {
	n.mu.Lock()
	if now := time.Now(); !now.Equal(n.last) { // two packets at the same time are one question
		n.asked[name], n.last = n.asked[name]+1, now
	}
	lost := n.dead[name] || n.lose[name] > 0
	n.lose[name]--
	n.mu.Unlock()
	if lost {
		time.Sleep(200 * time.Millisecond)
		return errNoAnswer
	}
	time.Sleep(time.Millisecond)
	return nil
}

func (n *nodes) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *nodes) questions(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[name]
}

func start(t *testing.T, n *nodes) *pulse.Pulse {
	p := pulse.New(pulse.Config{Nodes: n.list, Changed: n.change, Ask: n.ask})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return p
}

func silent(p *pulse.Pulse, node string) bool {
	_, is := p.Silent(node)
	return is
}

func TestADeadNodeIsSilentWithinTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes("a", "b")
		p := start(t, n)
		time.Sleep(10 * time.Second)
		if got := n.questions("a"); got < 9 || got > 11 {
			t.Errorf("asked %d times in ten seconds", got)
		}
		died, changed := time.Now(), p.Changed()
		n.set(func() { n.dead["a"] = true })
		<-changed
		since, is := p.Silent("a")
		if took := time.Since(died); !is || took > 2*time.Second || took < 800*time.Millisecond {
			t.Errorf("silent %v, after %s", is, took)
		}
		if since.Before(died) || since.Sub(died) > time.Second {
			t.Errorf("silent since %s after its death", since.Sub(died))
		}
		if silent(p, "b") {
			t.Error("b is silent")
		}
		// The answer to a question of just before its death comes yet.
		if a, b := p.Heard("a"), p.Heard("b"); a.After(died.Add(time.Millisecond)) || died.Sub(a) > time.Second ||
			time.Since(b) > time.Second {
			t.Errorf("a was heard %s before it died, b %s ago", died.Sub(a), time.Since(b))
		}
		back, changed := time.Now(), p.Changed()
		n.set(func() { n.dead["a"] = false })
		<-changed
		if took := time.Since(back); silent(p, "a") || took > 500*time.Millisecond {
			t.Errorf("still silent %v, %s after it is back", silent(p, "a"), took)
		}
	})
}

func TestLostPacketsMakeNobodySilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes("a")
		p := start(t, n)
		changed := p.Changed()
		for range 100 {
			time.Sleep(3 * time.Second)
			n.set(func() { n.lose["a"] = 1 + 3*2 }) // four questions
		}
		select {
		case <-changed:
			t.Error("four lost answers are a silence")
		default:
		}
	})
}

func TestWhoIsToBeAskedChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes("a")
		p := start(t, n)
		n.set(func() { n.names, n.dead["b"] = []string{"a", "b"}, true })
		time.Sleep(3 * time.Second)
		if !silent(p, "b") {
			t.Error("the new one is not asked")
		}
		changed := p.Changed()
		n.set(func() { n.names = []string{"a"} })
		<-changed
		if silent(p, "b") || !p.Heard("b").IsZero() {
			t.Error("one that is gone is still known")
		}
		before := n.questions("b")
		time.Sleep(time.Minute)
		if got := n.questions("b"); got != before {
			t.Errorf("one that is gone was asked %d times", got-before)
		}
	})
}

func TestANodeThatIsDeadForLongIsAskedCalmly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes("a")
		n.dead["a"] = true
		start(t, n)
		time.Sleep(2 * time.Minute)
		before := n.questions("a")
		time.Sleep(time.Minute)
		if got := n.questions("a") - before; got < 58 || got > 61 {
			t.Errorf("asked %d times in a minute", got)
		}
	})
}
