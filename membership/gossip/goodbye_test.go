package gossip

import (
	"encoding/json"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// A good-bye that is heard after the death, as on a network that loses packets, is one all the
// same: if it is the member's own, and not of another time.
func TestAGoodbyeThatComesAfterTheDeath(t *testing.T) {
	ca := newCA(t)
	now := time.Now()
	var later atomic.Int64 // than the clock, in nanoseconds
	proof := proofOf(t, ca, "n1", "server", now.Add(time.Hour))
	n := startNode(t,
		Config{Name: "n1", Advertise: freeAddr(t, 1), Authority: pki.TrustOf(ca), Proof: func() Proof { return proof },
			Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }, Tune: calm})

	addr := netip.MustParseAddrPort("127.1.0.99:7946")
	other := proofOf(t, ca, "n2", "agent", now.Add(time.Hour))
	says := func(proof Proof, facts Facts) *memberlist.Node {
		meta, err := encodeMeta(clusterID, "n2", addr, proof, facts)
		if err != nil {
			t.Fatal(err)
		}
		return &memberlist.Node{Name: "n2", Addr: addr.Addr().AsSlice(), Port: addr.Port(), Meta: meta}
	}
	alive, leaving := says(other, Facts{}), says(other, Facts{Leaving: true})
	n.NotifyJoin(alive)
	if err := n.NotifyAlive(leaving); err != nil || n.state("n2") != Alive {
		t.Fatalf("before memberlist has taken it over: %s, %v", n.state("n2"), err)
	}
	n.NotifyLeave(alive)
	if n.state("n2") != Dead {
		t.Fatalf("without a good-bye: %s", n.state("n2"))
	}
	forged := proofOf(t, newCA(t), "n2", "agent", now.Add(time.Hour))
	if err := n.NotifyAlive(says(forged, Facts{Leaving: true})); err == nil || n.state("n2") != Dead {
		t.Fatalf("with a good-bye that somebody else has signed: %s, %v", n.state("n2"), err)
	}
	if err := n.NotifyAlive(alive); err != nil || n.state("n2") != Dead {
		t.Fatalf("with what it said before: %s, %v", n.state("n2"), err)
	}
	changed := n.Changed()
	died, _ := n.Member("n2")
	if err := n.NotifyAlive(leaving); err != nil || n.state("n2") != Left {
		t.Fatalf("with its good-bye: %s, %v", n.state("n2"), err)
	}
	if m, _ := n.Member("n2"); !m.Since.Equal(died.Since) {
		t.Errorf("it has left at %v, and was seen dead at %v", m.Since, died.Since)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told that it has left")
	}

	n.NotifyJoin(alive)
	n.NotifyLeave(alive)
	later.Store(int64(lateGoodbye))
	if err := n.NotifyAlive(leaving); err != nil || n.state("n2") != Dead {
		t.Errorf("with a good-bye of long ago: %s, %v", n.state("n2"), err)
	}
}

// Gossip drops a good-bye wherever the end of the member comes first, and may lose it. The servers
// get it directly.
func TestServersHearAGoodbyeThatGossipLoses(t *testing.T) {
	ca := newCA(t)
	seed := freeAddr(t, 81)
	start := func(name, role string, addr netip.AddrPort) *node {
		proof := proofOf(t, ca, name, role, time.Now().Add(time.Hour))
		return startNode(t,
			Config{Name: name, Advertise: addr, Authority: pki.TrustOf(ca), Proof: func() Proof { return proof },
				Seeds: func() []netip.AddrPort { return []netip.AddrPort{seed} }, Tune: func(c *memberlist.Config) {
					calm(c)
					c.ProbeInterval, c.ProbeTimeout = time.Second, 500*time.Millisecond
				}})
	}
	server, agent := start("s1", "server", seed), start("a1", "agent", freeAddr(t, 82))
	server.eventually("a1 is alive", func() bool { return server.state("a1") == Alive })
	agent.eventually("s1 is alive", func() bool { return agent.state("s1") == Alive })

	// All of leave that is not gossip.
	agent.halt()
	agent.mu.Lock()
	agent.facts.Leaving = true
	agent.mu.Unlock()
	if err := agent.sayGoodbye(); err != nil {
		t.Fatal(err)
	}
	agent.crash()
	server.eventually("a1 is gone", func() bool { return server.state("a1") != Alive })
	server.eventually("a1 has left", func() bool { return server.state("a1") == Left })
}

// A good-bye that comes by itself counts like one that was gossiped: with its member's signature,
// and for a while.
func TestAGoodbyeThatComesByItself(t *testing.T) {
	ca, now := newCA(t), time.Now()
	proof := proofOf(t, ca, "s1", "server", now.Add(time.Hour))
	p := startNode(t,
		Config{Name: "s1", Advertise: freeAddr(t, 83), Authority: pki.TrustOf(ca), Tune: calm,
			Proof: func() Proof { return proof }})
	addr := netip.MustParseAddrPort("127.1.0.99:7946")
	own, foreign := proofOf(t, ca, "a1", "agent", now.Add(time.Hour)),
		proofOf(t, newCA(t), "a1", "agent", now.Add(time.Hour))
	meta := func(proof Proof, facts Facts) []byte {
		data, err := encodeMeta(clusterID, "a1", addr, proof, facts)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	alive := &memberlist.Node{Name: "a1", Addr: addr.Addr().AsSlice(), Port: addr.Port(), Meta: meta(own, Facts{})}
	said := meta(own, Facts{Leaving: true})
	for what, c := range map[string]struct {
		from string
		meta []byte
		ago  time.Duration
		want State
	}{
		"its own":             {"a1", said, 0, Left},
		"of long ago":         {"a1", said, lateGoodbye, Dead},
		"somebody else's":     {"a1", meta(foreign, Facts{Leaving: true}), 0, Dead},
		"another member's":    {"s1", said, 0, Dead},
		"no good-bye":         {"a1", alive.Meta, 0, Dead},
		"of nobody we know":   {"a9", said, 0, Dead},
		"what means nothing":  {"a1", []byte("?"), 0, Dead},
		"one without content": {"a1", nil, 0, Dead},
	} {
		text, err := json.Marshal(message{Kind: goodbye, From: c.from, Meta: c.meta})
		if err != nil {
			t.Fatal(err)
		}
		p.NotifyJoin(alive)
		p.NotifyMsg(text)
		p.mu.Lock()
		if at, ok := p.leaving["a1"]; ok {
			p.leaving["a1"] = at.Add(-c.ago)
		}
		p.mu.Unlock()
		if p.NotifyLeave(alive); p.state("a1") != c.want {
			t.Errorf("%s: it is %s, want %s", what, p.state("a1"), c.want)
		}
		if c.want == Dead && c.ago == 0 {
			continue
		}
		p.NotifyJoin(alive)
		if p.NotifyLeave(alive); p.state("a1") != Dead {
			t.Errorf("%s, and then it came back and died: it is %s", what, p.state("a1"))
		}
	}
	text, err := json.Marshal(message{Kind: goodbye, From: "a1", Meta: said})
	if err != nil {
		t.Fatal(err)
	}
	if p.NotifyMsg(text); p.state("a1") != Left {
		t.Errorf("just after its death: it is %s", p.state("a1"))
	}
	p.NotifyMsg(text) // once more: it has left already
	p.NotifyJoin(alive)
	if p.NotifyLeave(alive); p.state("a1") != Dead {
		t.Errorf("after a good-bye that came late, and a life since then: it is %s", p.state("a1"))
	}
	p.NotifyJoin(alive)
	p.NotifyMsg(text)
	p.NotifyUpdate(alive) // it was back before any member missed it
	if p.NotifyLeave(alive); p.state("a1") != Dead {
		t.Errorf("after a good-bye that it took back: it is %s", p.state("a1"))
	}
}
