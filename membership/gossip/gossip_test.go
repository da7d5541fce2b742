package gossip

import (
	"context"
	"crypto/ed25519"
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
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

const clusterID = "c1"

var key = []byte("0123456789abcdef0123456789abcdef")

// node is one member of a test's pool, on a loopback address of its own.
type node struct {
	*Pool
	t    *testing.T
	once sync.Once
	halt func()
}

// leave goes in order, with a good-bye.
func (n *node) leave() {
	n.once.Do(func() {
		n.halt()
		if err := n.Pool.leave(); err != nil {
			n.t.Error(err)
		}
	})
}

// crash goes without a good-bye, as a machine that loses power.
func (n *node) crash() {
	n.once.Do(func() {
		n.halt()
		if err := n.list.Shutdown(); err != nil {
			n.t.Error(err)
		}
		n.talk.close()
	})
}

func freeAddr(t *testing.T, n int) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.1.0.%d:0", n))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

func proofOf(t testing.TB, ca *pki.Authority, name, role string, ends time.Time) Proof {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	credential, err := ca.SignCredential(pki.Credential{Name: name, Role: role, Public: public, NotAfter: ends})
	if err != nil {
		t.Fatal(err)
	}
	return Proof{Credential: credential, Key: private}
}

// fast makes detection quick enough for a test.
func fast(c *memberlist.Config) {
	c.ProbeInterval, c.ProbeTimeout = 50*time.Millisecond, 25*time.Millisecond
	c.GossipInterval, c.SuspicionMult = 10*time.Millisecond, 2
	c.TCPTimeout, c.DeadNodeReclaimTime = time.Second, time.Millisecond
	c.PushPullInterval = time.Second // a busy machine may lose a message that is gossiped once
}

// calm gives answers time, on a machine that is busy with other tests, and calls no member dead for
// a while.
func calm(c *memberlist.Config) {
	fast(c)
	c.ProbeInterval, c.ProbeTimeout, c.TCPTimeout = 20*time.Second, 10*time.Second, 20*time.Second
}

func startNode(t *testing.T, c Config) *node {
	t.Helper()
	c.ClusterID, c.Keys, c.Rejoin = clusterID, [][]byte{key}, 50*time.Millisecond
	if c.Tune == nil {
		c.Tune = fast
	}
	c.Goodbye = 20 * time.Second             // a busy machine must not turn a good-bye into a death
	c.Logger = slog.New(slog.DiscardHandler) // not t.Output: memberlist logs after Shutdown
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		p.attend(ctx)
		close(done)
	}()
	n := &node{Pool: p, t: t, halt: func() { cancel(); <-done }}
	t.Cleanup(n.crash)
	return n
}

// eventually waits for the condition at every change of the pool.
func (n *node) eventually(what string, condition func() bool) {
	n.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		changed := n.Changed()
		if condition() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			n.t.Fatalf("%s: never; members are %+v", what, n.Members())
		}
	}
}

func (n *node) state(name string) State {
	m, _ := n.Member(name)
	return m.State
}

func newCA(t *testing.T) *pki.Authority {
	t.Helper()
	ca, err := pki.NewAuthority(clusterID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestPoolTellsDeathFromLeaving(t *testing.T) {
	ca := newCA(t)
	var nodes []*node
	seed := freeAddr(t, 1)
	for i := 1; i <= 3; i++ {
		name, addr := fmt.Sprintf("n%d", i), seed
		if i > 1 {
			addr = freeAddr(t, i)
		}
		proof := proofOf(t, ca, name, "server", time.Now().Add(time.Hour))
		nodes = append(nodes,
			startNode(t,
				Config{Name: name, Advertise: addr, Authority: pki.TrustOf(ca), Proof: func() Proof { return proof },
					Facts: Facts{Zone: "z" + name, APIPort: 6443},
					Seeds: func() []netip.AddrPort { return []netip.AddrPort{seed} }}))
	}
	for _, n := range nodes {
		n.eventually("all alive",
			func() bool { return n.state("n1") == Alive && n.state("n2") == Alive && n.state("n3") == Alive })
	}
	if m, _ := nodes[0].Member("n3"); m.Role != "server" || m.Facts.Zone != "zn3" || m.Facts.APIPort != 6443 {
		t.Fatalf("n3 as n1 sees it: %+v", m)
	}

	nodes[2].leave()
	nodes[0].eventually("n3 has left", func() bool { return nodes[0].state("n3") == Left })

	nodes[1].crash()
	nodes[0].eventually("n2 is dead", func() bool { return nodes[0].state("n2") == Dead })
	before, _ := nodes[0].Member("n2")
	if before.Since.IsZero() {
		t.Fatal("a dead member has no time of death")
	}
}

// A member that is about to leave stays in the pool until it leaves, and has left even if its
// process is killed in between. One that is back has not.
func TestAMemberThatIsAboutToLeave(t *testing.T) {
	ca := newCA(t)
	a, b := freeAddr(t, 21), freeAddr(t, 22)
	proofA, proofB := proofOf(t, ca, "a", "server", time.Now().Add(time.Hour)),
		proofOf(t, ca, "b", "agent", time.Now().Add(time.Hour))
	first := startNode(t,
		Config{Name: "a", Advertise: a, Authority: pki.TrustOf(ca), Proof: func() Proof { return proofA }})
	config := Config{Name: "b", Advertise: b, Authority: pki.TrustOf(ca), Proof: func() Proof { return proofB },
		Seeds: func() []netip.AddrPort { return []netip.AddrPort{a} }}
	second := startNode(t, config)
	first.eventually("b is alive", func() bool { return first.state("b") == Alive })
	if m, _ := first.Member("b"); !m.GoodbyeSince.IsZero() {
		t.Fatalf("before it has said anything: %+v", m)
	}
	second.AnnounceLeaving()
	said := func() time.Time { m, _ := first.Member("b"); return m.GoodbyeSince }
	first.eventually("b is about to leave", func() bool { return !said().IsZero() })
	if state := first.state("b"); state != Alive {
		t.Errorf("b is %s before it leaves", state)
	}
	since := said()
	second.SetHealth(KubeletIll)
	first.eventually("b is ill", func() bool { m, _ := first.Member("b"); return m.Facts.Health == KubeletIll })
	if !said().Equal(since) {
		t.Errorf("its good-bye began at %v, and then at %v", since, said())
	}
	second.crash()
	first.eventually("b has left", func() bool { return first.state("b") == Left })
	startNode(t, config)
	first.eventually("b is back", func() bool { return first.state("b") == Alive && said().IsZero() })
}

func TestDeadMemberComesBack(t *testing.T) {
	ca := newCA(t)
	a, b := freeAddr(t, 11), freeAddr(t, 12)
	proofA, proofB := proofOf(t, ca, "a", "server", time.Now().Add(time.Hour)),
		proofOf(t, ca, "b", "agent", time.Now().Add(time.Hour))
	seeds := func() []netip.AddrPort { return []netip.AddrPort{a} }
	first := startNode(t,
		Config{Name: "a", Advertise: a, Authority: pki.TrustOf(ca), Proof: func() Proof { return proofA }})
	config := Config{Name: "b", Advertise: b, Authority: pki.TrustOf(ca), Proof: func() Proof { return proofB },
		Seeds: seeds}
	second := startNode(t, config)
	first.eventually("b alive", func() bool { return first.state("b") == Alive })
	second.crash()
	first.eventually("b dead", func() bool { return first.state("b") == Dead })
	startNode(t, config)
	first.eventually("b alive again", func() bool { return first.state("b") == Alive })
}

// TestAMemberComesBackAtAnotherPort: as after a stop or a crash of a node whose port was changed.
func TestAMemberComesBackAtAnotherPort(t *testing.T) {
	for name, end := range map[string]func(*node){"stopped": func(n *node) { n.leave(); n.crash() },
		"killed": (*node).crash} {
		t.Run(name, func(t *testing.T) {
			ca := newCA(t)
			a, b, other := freeAddr(t, 11), freeAddr(t, 12), netip.AddrPort{}
			for other.Port() == 0 || other == b {
				other = freeAddr(t, 12)
			}
			proofA, proofB := proofOf(t, ca, "a", "server", time.Now().Add(time.Hour)),
				proofOf(t, ca, "b", "agent", time.Now().Add(time.Hour))
			seeds := func() []netip.AddrPort { return []netip.AddrPort{a} }
			first := startNode(t,
				Config{Name: "a", Advertise: a, Authority: pki.TrustOf(ca), Proof: func() Proof { return proofA }})
			config := Config{Name: "b", Advertise: b, Authority: pki.TrustOf(ca), Proof: func() Proof { return proofB },
				Seeds: seeds}
			second := startNode(t, config)
			first.eventually("b alive", func() bool { return first.state("b") == Alive })
			end(second)
			config.Advertise = other
			startNode(t, config)
			first.eventually("b alive at its other port", func() bool {
				m, _ := first.Member("b")
				return m.State == Alive && m.Addr == other
			})
		})
	}
}

// impostor is a member that believes all, itself included.
type impostor struct {
	*Pool
	meta []byte
}

func (s *impostor) NodeMeta(int) []byte { return s.meta }

func startImpostor(t *testing.T, name string, addr netip.AddrPort, proof Proof, seed netip.AddrPort) {
	t.Helper()
	meta, err := encodeMeta(clusterID, name, addr, proof, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	c := memberlist.DefaultLANConfig()
	fast(c)
	c.Name, c.Label, c.SecretKey = name, "barque:"+clusterID, key
	c.BindAddr, c.BindPort = addr.Addr().String(), int(addr.Port())
	c.AdvertiseAddr, c.AdvertisePort = c.BindAddr, c.BindPort
	c.Delegate, c.LogOutput = &impostor{meta: meta}, io.Discard
	list, err := memberlist.Create(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = list.Shutdown() })
	_, _ = list.Join([]string{seed.String()}) // it may be refused: the test is about that
}

// A machine that has the pool's key but no credential of this cluster is not believed.
func TestPoolBelievesOnlyProvenMembers(t *testing.T) {
	ca := newCA(t)
	addr, good := freeAddr(t, 21), freeAddr(t, 24)
	seeds := func() []netip.AddrPort { return []netip.AddrPort{addr} }
	own := proofOf(t, ca, "a", "server", time.Now().Add(time.Hour))
	a := startNode(t,
		Config{Name: "a", Advertise: addr, Authority: pki.TrustOf(ca), Proof: func() Proof { return own }})

	for i, c := range []struct {
		name  string
		proof Proof
	}{
		{"foreign", proofOf(t, newCA(t), "foreign", "server", time.Now().Add(time.Hour))},
		{"impostor", proofOf(t, ca, "someone", "server", time.Now().Add(time.Hour))},
		{"ended", proofOf(t, ca, "ended", "server", time.Now().Add(-time.Hour))},
	} {
		startImpostor(t, c.name, freeAddr(t, 31+i), c.proof, addr)
	}
	// A proven member joins after them: when it is seen, so would the others be.
	proof := proofOf(t, ca, "good", "agent", time.Now().Add(time.Hour))
	startNode(t,
		Config{Name: "good", Advertise: good, Authority: pki.TrustOf(ca), Seeds: seeds,
			Proof: func() Proof { return proof }})
	a.eventually("good alive", func() bool { return a.state("good") == Alive })
	for _, name := range []string{"foreign", "impostor", "ended"} {
		if m, ok := a.Member(name); ok {
			t.Errorf("%s was believed: %+v", name, m)
		}
	}
}

func TestMetadata(t *testing.T) {
	ca, now := newCA(t), time.Now()
	addr := netip.MustParseAddrPort("10.0.0.7:7946")
	proof := proofOf(t, ca, "n1", "server", now.Add(time.Hour))
	meta, err := encodeMeta(clusterID, "n1", addr, proof,
		Facts{Version: "v1.37.0+barque.1", Zone: "rack-1", APIPort: 6443, PeerPort: 6444})
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string, addr netip.AddrPort, meta []byte) *memberlist.Node {
		return &memberlist.Node{Name: name, Addr: addr.Addr().AsSlice(), Port: addr.Port(), Meta: meta}
	}
	if holder, facts, err := decodeMeta(pki.TrustOf(ca), clusterID, at("n1", addr, meta), now); err != nil ||
		holder.Role != "server" || facts.Zone != "rack-1" {
		t.Fatalf("decodeMeta = %+v, %+v, %v", holder, facts, err)
	}
	for what, node := range map[string]*memberlist.Node{
		"another name":    at("n2", addr, meta),
		"another address": at("n1", netip.MustParseAddrPort("10.0.0.8:7946"), meta),
		"cut off":         at("n1", addr, meta[:len(meta)-1]),
		"empty":           at("n1", addr, nil),
	} {
		if _, _, err := decodeMeta(pki.TrustOf(ca), clusterID, node, now); err == nil {
			t.Errorf("%s: metadata was believed", what)
		}
	}
	if _, _, err := decodeMeta(pki.TrustOf(ca), "c2", at("n1", addr, meta), now); err == nil {
		t.Error("another cluster believed the metadata")
	}
	if _, err := encodeMeta(clusterID, "n1", addr, proof, Facts{Zone: strings.Repeat("z", 400)}); err == nil {
		t.Error("metadata over memberlist's limit was not refused")
	}
}

// A node that runs for longer than its credential lasts shows the others the new one.
func TestARenewedCredentialIsShown(t *testing.T) {
	ca := newCA(t)
	seed := freeAddr(t, 1)
	seeds := func() []netip.AddrPort { return []netip.AddrPort{seed} }
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(ends time.Time) *Proof {
		credential, err := ca.SignCredential(pki.Credential{Name: "n1", Role: "agent", Public: public, NotAfter: ends})
		if err != nil {
			t.Fatal(err)
		}
		return &Proof{Credential: credential, Key: private}
	}
	var proof atomic.Pointer[Proof]
	proof.Store(issue(time.Now().Add(time.Hour)))
	startNode(t,
		Config{Name: "n1", Advertise: seed, Authority: pki.TrustOf(ca), Proof: func() Proof { return *proof.Load() },
			Seeds: seeds})
	other := proofOf(t, ca, "n2", "server", time.Now().Add(time.Hour))
	n2 := startNode(t,
		Config{Name: "n2", Advertise: freeAddr(t, 2), Authority: pki.TrustOf(ca), Proof: func() Proof { return other },
			Seeds: seeds})
	n2.eventually("n1 is alive", func() bool { return n2.state("n1") == Alive })
	proof.Store(issue(time.Now().Add(2 * time.Hour)))
	n2.eventually("the renewed credential", func() bool {
		m, _ := n2.Member("n1")
		return m.ProvenUntil.After(time.Now().Add(90 * time.Minute))
	})
}

// TestStrangersAtTheStreamPort: silent TCP connections are bounded, and nodes meet beside them.
func TestStrangersAtTheStreamPort(t *testing.T) {
	ca := newCA(t)
	seed := freeAddr(t, 1)
	begin := func(name string, addr netip.AddrPort) *node {
		proof := proofOf(t, ca, name, "server", time.Now().Add(time.Hour))
		return startNode(t,
			Config{Name: name, Advertise: addr, Authority: pki.TrustOf(ca), Proof: func() Proof { return proof },
				Tune:  calm,
				Seeds: func() []netip.AddrPort { return []netip.AddrPort{seed} }})
	}
	a := begin("a", seed)
	var silent []net.Conn
	for range 3 * streamLimits.Total {
		conn, err := net.Dial("tcp", seed.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		silent = append(silent, conn)
	}
	b := begin("b", freeAddr(t, 2))
	a.eventually("b is alive", func() bool { return a.state("b") == Alive })
	b.eventually("a is alive", func() bool { return b.state("a") == Alive })
	closed := 0
	for _, conn := range silent[:2*streamLimits.Total] { // memberlist would close them after 20 s
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := conn.Read(make([]byte, 1)); n == 0 && err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != 2*streamLimits.Total {
		t.Errorf("%d of %d silent connections are closed", closed, len(silent))
	}
	if n := a.streams.limiter.Count(); n > streamLimits.Total {
		t.Errorf("%d connections", n)
	}
}
