package gossip

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// A good-bye that is heard after the death, as on a network that loses packets, is one all the same: if it is the member's
// own, and not of another time.
func TestAGoodbyeThatComesAfterTheDeath(t *testing.T) {
	ca := newCA(t)
	now := time.Now()
	var later atomic.Int64 // than the clock, in nanoseconds
	proof := proofOf(t, ca, "n1", "server", now.Add(time.Hour))
	n := startNode(t, Config{Name: "n1", Advertise: freeAddr(t, 1), Authority: pki.TrustOf(ca), Proof: func() Proof { return proof },
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
