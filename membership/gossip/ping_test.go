package gossip

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

func TestPing(t *testing.T) {
	ca := newCA(t)
	seed := freeAddr(t, 1)
	var nodes []*node
	for i, name := range []string{"n1", "n2"} {
		addr := seed
		if i > 0 {
			addr = freeAddr(t, 2)
		}
		proof := proofOf(t, ca, name, "server", time.Now().Add(time.Hour))
		nodes = append(nodes,
			startNode(t,
				Config{Name: name, Advertise: addr, Authority: pki.TrustOf(ca), Proof: func() Proof { return proof },
					Seeds: func() []netip.AddrPort { return []netip.AddrPort{seed} }}))
	}
	nodes[0].eventually("n2 is alive", func() bool { return nodes[0].state("n2") == Alive })
	// A busy machine may be too slow for one question.
	for deadline := time.Now().Add(time.Minute); ; {
		err := nodes[0].Ping("n2")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("n2 never answers: %v", err)
		}
	}
	nodes[1].crash()
	if err := nodes[0].Ping("n2"); err == nil {
		t.Error("n2 answers, and it is gone")
	}
	if err := nodes[0].Ping("n3"); !errors.Is(err, ErrUnknownMember) {
		t.Errorf("of one that nobody has heard of: %v", err)
	}
}
