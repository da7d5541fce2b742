package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// Gossip repeats the members' messages all the time, and a pool's whole state goes with every
// exchange over TCP.
func BenchmarkRepeatedAlive(b *testing.B) {
	ca, err := pki.NewAuthority(clusterID, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	p, node := believer(b, pki.TrustOf(ca)), memberOf(b, ca, "n1", time.Now().Add(time.Hour), Facts{Version: "v1.2.3"})
	b.ReportAllocs()
	for b.Loop() {
		if err := p.NotifyAlive(node); err != nil {
			b.Fatal(err)
		}
	}
}

// A member that was believed once is believed again without a signature; one that differs
// is verified.
func TestProven(t *testing.T) {
	now := time.Now()
	ca, err := pki.NewAuthority(clusterID, now)
	if err != nil {
		t.Fatal(err)
	}
	counted := &counting{Trust: pki.TrustOf(ca)}
	p := believer(t, counted)
	p.config.Now = func() time.Time { return now }
	expect := func(what string, node *memberlist.Node, believed bool, looks int) {
		t.Helper()
		before := counted.looks
		if err := p.NotifyAlive(node); (err == nil) != believed {
			t.Errorf("%s: %v", what, err)
		}
		if got := counted.looks - before; got != looks {
			t.Errorf("%s: %d credentials were looked at, want %d", what, got, looks)
		}
	}
	first := memberOf(t, ca, "n1", now.Add(time.Hour), Facts{Zone: "a"})
	expect("the first time", first, true, 1)
	expect("again", first, true, 0)
	if holder, facts, err := p.prove(first); err != nil || holder.Name != "n1" || holder.Role != "agent" ||
		facts.Zone != "a" {
		t.Errorf("again: %+v %+v %v", holder, facts, err)
	}
	elsewhere := *first
	elsewhere.Port++
	expect("the same at another address", &elsewhere, false, 1)
	otherName := *first
	otherName.Name = "n2"
	expect("the same under another name", &otherName, false, 1)
	forged := *first
	forged.Meta = append([]byte(nil), first.Meta...)
	forged.Meta[len(forged.Meta)-2] ^= 1
	expect("other facts", &forged, false, 1)
	expect("what was believed", first, true, 0)
	expect("new facts", memberOf(t, ca, "n1", now.Add(time.Hour), Facts{Zone: "b"}), true, 1)
	expect("the old ones", first, true, 1)

	now = now.Add(2 * time.Hour)
	if err := p.NotifyAlive(first); !errors.Is(err, pki.ErrCredentialEnded) {
		t.Errorf("after its end: %v", err)
	}
	now = now.Add(-2 * time.Hour)
	expect("when the clock was set back", first, true, 0)

	other, err := pki.NewAuthority(clusterID, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := counted.Set(pki.NewBundle(other)); err != nil {
		t.Fatal(err)
	}
	expect("after its CA has gone", first, false, 1)
}

// counting counts how often a credential is looked at.
type counting struct {
	*pki.Trust
	looks int
}

func (c *counting) VerifyCredential(data []byte, now time.Time) (pki.Credential, error) {
	c.looks++
	return c.Trust.VerifyCredential(data, now)
}

// However many members there are, the number of remembered ones has a bound, and forgotten ones are
// not among them.
func TestProvenIsBounded(t *testing.T) {
	var p proven
	trust := make(chan struct{})
	for i := range 2*maxProven + 10 {
		p.put(trust, fmt.Sprint(i), provenMember{})
		if len(p.members) > maxProven {
			t.Fatalf("%d are remembered", len(p.members))
		}
	}
	if len(p.members) != 10 {
		t.Errorf("%d are remembered, want 10", len(p.members))
	}
	last := fmt.Sprint(2*maxProven + 9)
	if _, ok := p.get(trust, last); !ok {
		t.Error("the last one is not remembered")
	}
	p.forget(last)
	if _, ok := p.get(trust, last); ok {
		t.Error("one that was forgotten is remembered")
	}
}

// believer is a pool without a network.
func believer(tb testing.TB, trust Verifier) *Pool {
	tb.Helper()
	return &Pool{
		config: Config{Name: "self", ClusterID: clusterID, Authority: trust, Logger: slog.New(slog.DiscardHandler),
			Now: time.Now}}
}

var memberAddr = netip.MustParseAddrPort("10.0.0.1:7946")

func memberOf(tb testing.TB, ca *pki.Authority, name string, ends time.Time, facts Facts) *memberlist.Node {
	tb.Helper()
	meta, err := encodeMeta(clusterID, name, memberAddr, proofOf(tb, ca, name, "agent", ends), facts)
	if err != nil {
		tb.Fatal(err)
	}
	return &memberlist.Node{Name: name, Addr: memberAddr.Addr().AsSlice(), Port: memberAddr.Port(), Meta: meta}
}
