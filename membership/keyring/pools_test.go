package keyring_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/membership/rollovertest"
	"github.com/barque/barque/pki"
)

// cluster is servers and agents with real pools on loopback addresses.
type cluster struct {
	*testing.T
	ca      *pki.Authority
	store   *rollovertest.Store
	seeds   []netip.AddrPort // of the servers
	nodes   map[string]*node
	barred  sync.Map // names that get no keys
	offline sync.Map // names that cannot ask servers
	first   []byte   // the key that the cluster begins with
	probe   time.Duration
}

type node struct {
	name, role string
	addr       netip.AddrPort
	proof      gossip.Proof
	ring       keyring.Ring // on its disk
	mu         sync.Mutex

	pool    *gossip.Pool
	own     *keyring.Own
	manager *keyring.Manager
	stop    func()
	lead    func() // ends its leadership
}

// calm lets a busy machine take nobody for dead; those who leave say so.
const calm = 20 * time.Second

func newCluster(t *testing.T, net int, servers, agents int, probe time.Duration) *cluster {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, ca: ca, store: rollovertest.New(), nodes: map[string]*node{}, probe: probe,
		first: bytes.Repeat([]byte{7}, keyring.KeySize)}
	for i := range servers + agents {
		n := &node{name: fmt.Sprint("s", i+1), role: "server", addr: freeAddr(t, net+i),
			ring: keyring.Ring{Keys: [][]byte{c.first}}}
		if i >= servers {
			n.name, n.role = fmt.Sprint("a", i+1-servers), "agent"
		}
		if n.role == "server" {
			c.seeds = append(c.seeds, n.addr)
		}
		public, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		credential, err := ca.SignCredential(
			pki.Credential{Name: n.name, Role: n.role, Public: public, NotAfter: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		n.proof = gossip.Proof{Credential: credential, Key: private}
		c.nodes[n.name] = n
	}
	for name := range c.nodes {
		c.start(name)
	}
	c.lead("s1")
	c.eventually("all alive", func() error { return c.allAlive() })
	return c
}

func freeAddr(t *testing.T, n int) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.2.0.%d:0", n))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// start starts a node with the keys on its disk.
func (c *cluster) start(name string) {
	c.Helper()
	n := c.nodes[name]
	quiet := slog.New(slog.DiscardHandler)
	var err error
	n.pool, err = gossip.New(gossip.Config{
		Name: name, ClusterID: "c1", Advertise: n.addr, Keys: n.disk().Keys, Authority: pki.TrustOf(c.ca),
		Facts: gossip.Facts{KeyGeneration: n.disk().Generation},
		Proof: func() gossip.Proof { return n.proof }, Seeds: func() []netip.AddrPort { return c.seeds },
		Rejoin: 50 * time.Millisecond, Goodbye: 20 * time.Second, Logger: quiet,
		Tune: func(m *memberlist.Config) {
			m.ProbeInterval, m.ProbeTimeout = c.probe, c.probe/2
			m.GossipInterval, m.TCPTimeout, m.DeadNodeReclaimTime = 10*time.Millisecond, time.Second, time.Millisecond
			m.PushPullInterval = time.Second // a busy machine may lose what is gossiped once
		},
	})
	if err != nil {
		c.Fatal(err)
	}
	n.own = keyring.NewOwn(n.disk(), n.save, func(r keyring.Ring) error { return n.pool.SetKeys(r.Keys, r.Generation) })
	n.manager = keyring.New(
		keyring.Config{Own: n.own, Sealer: c.ca, Members: func() []rollover.Member { return c.members(n.pool) },
			Server: rollover.Server{Cluster: "c1", Store: c.store, Changed: n.pool.Changed, Logger: quiet}})
	refresher := keyring.NewRefresher(keyring.RefresherConfig{Own: n.own, Changed: n.pool.Changed, Logger: quiet,
		Fetch: func(_ context.Context, generation uint64) (keyring.Ring, error) { return c.fetch(name, generation) },
		Seen: func() (newest uint64, any bool) {
			for _, m := range n.pool.Members() {
				if m.Role == "server" && m.State == gossip.Alive && m.Name != name {
					newest, any = max(newest, m.Facts.KeyGeneration), true
				}
			}
			return newest, any
		}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	run := func(f func(context.Context) error) {
		running.Go(func() {
			if err := f(ctx); err != nil {
				c.Error(err)
			}
		})
	}
	run(n.pool.Run)
	run(refresher.Run)
	if n.role == "server" {
		run(n.manager.Run)
	}
	n.stop = sync.OnceFunc(func() {
		c.resign(name)
		cancel()
		running.Wait()
	})
	c.Cleanup(n.stop)
}

func (n *node) disk() keyring.Ring {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ring
}

func (n *node) save(r keyring.Ring) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ring = r
	return nil
}

// fetch is what a node gets that asks a server.
func (c *cluster) fetch(name string, generation uint64) (keyring.Ring, error) {
	if _, is := c.offline.Load(name); is {
		return keyring.Ring{}, errors.New("no way to a server")
	}
	if _, is := c.barred.Load(name); is {
		return keyring.Ring{}, keyring.ErrBarred
	}
	for _, n := range c.nodes {
		if ring := n.disk(); n.role == "server" && n.name != name && ring.Generation >= generation {
			return ring, nil
		}
	}
	return keyring.Ring{}, errors.New("no server has it")
}

func (c *cluster) members(pool *gossip.Pool) (out []rollover.Member) {
	for _, m := range pool.Members() {
		member := rollover.Member{Name: m.Name, Role: m.Role, Alive: m.State == gossip.Alive, State: string(m.State),
			Generation: m.Facts.KeyGeneration}
		if _, is := c.barred.Load(m.Name); is {
			member.Barred = "removed"
		}
		out = append(out, member)
	}
	return out
}

// lead makes a server the leader, in a new term; resign ends it.
func (c *cluster) lead(name string) {
	term := c.store.Elect()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	n := c.nodes[name]
	go func() {
		defer close(done)
		if err := n.manager.Lead(ctx, term); err != nil {
			c.Error(err)
		}
	}()
	n.lead = func() { cancel(); <-done }
}

func (c *cluster) resign(name string) {
	if n := c.nodes[name]; n.lead != nil {
		n.lead()
		n.lead = nil
	}
}

func (c *cluster) eventually(what string, try func() error) {
	c.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.Fatalf("%s: never; %v", what, err)
		}
	}
}

func (c *cluster) allAlive(except ...string) error {
	for _, n := range c.nodes {
		for _, other := range c.nodes {
			if slices.Contains(except, n.name) || slices.Contains(except, other.name) {
				continue
			}
			if m, _ := n.pool.Member(other.name); m.State != gossip.Alive {
				return fmt.Errorf("%s sees %s %q", n.name, other.name, m.State)
			}
		}
	}
	return nil
}

func (c *cluster) status() keyring.Status {
	c.Helper()
	s, err := c.nodes["s2"].manager.Status(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	return s
}

// atRest waits for the end of a rotation, and that all but some have exactly the keys of the
// cluster.
func (c *cluster) atRest(except ...string) keyring.Status {
	c.Helper()
	c.eventually("at rest", func() error {
		s := c.status()
		if s.Step != keyring.AtRest || len(s.Keys) != 1 {
			return fmt.Errorf("%+v", s)
		}
		for _, n := range c.nodes {
			if ring := n.disk(); !slices.Contains(except, n.name) &&
				(len(ring.Keys) != 1 || keyring.KeyID(ring.Keys[0]) != s.Keys[0].ID) {
				return fmt.Errorf("%s has %d keys of generation %d", n.name, len(ring.Keys), ring.Generation)
			}
		}
		return nil
	})
	return c.status()
}

func (c *cluster) rotate(server string, force bool) error {
	return c.nodes[server].manager.Rotate(c.Context(), force, false)
}

func TestRotation(t *testing.T) {
	c := newCluster(t, 1, 3, 2, calm)
	before := c.status()
	if len(before.Keys) != 1 || before.Keys[0].ID != keyring.KeyID(c.first) || before.Generation != 0 {
		t.Fatalf("before: %+v", before)
	}
	// Nobody loses anybody meanwhile.
	lost := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var watching sync.WaitGroup
	for _, n := range c.nodes {
		watching.Go(func() {
			for {
				changed := n.pool.Changed()
				for _, m := range n.pool.Members() {
					if m.State != gossip.Alive {
						select {
						case lost <- n.name + " lost " + m.Name:
						default:
						}
					}
				}
				select {
				case <-ctx.Done():
					return
				case <-changed:
				}
			}
		})
	}
	if err := c.nodes["s3"].manager.Rotate(t.Context(), false, true); err != nil || c.status().Step != keyring.AtRest {
		t.Fatalf("a dry run: %v, %+v", err, c.status())
	}
	for range 2 {
		c.offline.Store("a1", true)                   // so that it is under way for as long as it is to be
		if err := c.rotate("s2", false); err != nil { // a follower is asked
			t.Fatal(err)
		}
		if err := c.rotate("s3", false); err != nil { // again, while it is under way: nothing more happens
			t.Fatal(err)
		}
		c.offline.Delete("a1")
		c.eventually("a new key", func() error {
			if s := c.status(); s.Step != keyring.AtRest || s.Keys[0].ID == before.Keys[0].ID {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		after := c.atRest()
		if after.Generation != before.Generation+3 && before.Generation != 0 {
			t.Errorf("generation %d after %d: more than one rotation", after.Generation, before.Generation)
		}
		before = after
	}
	cancel()
	watching.Wait()
	select {
	case what := <-lost:
		t.Fatal(what)
	default:
	}
	value, _, err := c.store.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(value, c.nodes["s1"].disk().Keys[0]) {
		t.Error("the key is in the store in clear")
	}
}

func TestRotationWithoutAMemberThatComesBack(t *testing.T) {
	c := newCluster(t, 11, 3, 2, calm)
	c.nodes["a1"].stop()
	c.nodes["s3"].stop()
	for _, name := range []string{"a1", "s3"} {
		c.eventually(name+" has left", func() error {
			if m, _ := c.nodes["s2"].pool.Member(name); m.State != gossip.Left {
				return fmt.Errorf("it is %s", m.State)
			}
			return nil
		})
	}
	var refused *keyring.RefusedError
	if err := c.rotate("s2", false); !errors.As(err, &refused) ||
		!strings.Contains(err.Error(), "a1 (left), s3 (left)") {
		t.Fatalf("rotation with members away: %v", err)
	}
	if err := c.rotate("s2", true); err != nil {
		t.Fatal(err)
	}
	c.eventually("a new key", func() error {
		if s := c.status(); s.Generation < 3 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.atRest("a1", "s3")
	if id := keyring.KeyID(c.nodes["a1"].disk().Keys[0]); id != keyring.KeyID(c.first) {
		t.Fatal("one that was away has another key")
	}
	c.start("a1")
	c.start("s3")
	c.atRest()
	c.eventually("all alive", func() error { return c.allAlive() })
}

// A living agent cannot ask a server: the rotation waits, in whatever term, and goes on when it
// can.
func TestRotationOutlivesItsLeader(t *testing.T) {
	c := newCluster(t, 21, 3, 1, calm)
	c.offline.Store("a1", true)
	if err := c.rotate("s1", false); err != nil {
		t.Fatal(err)
	}
	c.eventually("waiting for the agent", func() error {
		if s := c.status(); s.Step != keyring.Add || !slices.Equal(s.Waiting, []string{"a1"}) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.nodes["s1"].stop()
	c.lead("s2")
	c.offline.Delete("a1")
	c.eventually("the next leader brings it to its end", func() error {
		if s := c.status(); s.Step != keyring.AtRest || s.Keys[0].ID == keyring.KeyID(c.first) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.start("s1")
	c.atRest()
	c.eventually("all alive", func() error { return c.allAlive() })
}

func TestUndo(t *testing.T) {
	c := newCluster(t, 31, 2, 1, calm)
	var refused *keyring.RefusedError
	if err := c.nodes["s2"].manager.Undo(t.Context(), false); !errors.As(err, &refused) {
		t.Fatalf("nothing to undo: %v", err)
	}
	c.offline.Store("a1", true)
	if err := c.rotate("s1", false); err != nil {
		t.Fatal(err)
	}
	c.eventually("the servers have the new key", func() error {
		if n := len(c.nodes["s2"].disk().Keys); n != 2 {
			return fmt.Errorf("%d keys", n)
		}
		return nil
	})
	if err := c.nodes["s2"].manager.Undo(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.offline.Delete("a1")
	if s := c.atRest(); s.Keys[0].ID != keyring.KeyID(c.first) {
		t.Fatalf("after the undo: %+v", s)
	}
	if err := c.allAlive(); err != nil {
		t.Fatal(err)
	}
}

// A machine that was removed is not waited for, and does not learn the new key.
func TestRotationWithoutARemovedMachine(t *testing.T) {
	c := newCluster(t, 41, 2, 2, 200*time.Millisecond)
	c.barred.Store("a2", true)
	// refused while a busy member is taken for dead
	c.eventually("a rotation that begins", func() error { return c.rotate("s1", false) })
	c.eventually("a new key", func() error {
		if s := c.status(); s.Generation < 3 || s.Step != keyring.AtRest {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.atRest("a2")
	if ring := c.nodes["a2"].disk(); len(ring.Keys) != 1 || !bytes.Equal(ring.Keys[0], c.first) {
		t.Fatalf("the removed machine has %d keys of generation %d", len(ring.Keys), ring.Generation)
	}
	c.eventually("the others lose the removed machine", func() error {
		if m, _ := c.nodes["s1"].pool.Member("a2"); m.State == gossip.Alive {
			return errors.New("alive")
		}
		return c.allAlive("a2")
	})
}

// A restored backup brings an older state, that of another cluster, or none: the members keep their
// keys.
func TestRestoredBackup(t *testing.T) {
	c := newCluster(t, 51, 2, 0, calm)
	if err := c.rotate("s1", false); err != nil {
		t.Fatal(err)
	}
	c.eventually("a new key", func() error {
		if s := c.status(); s.Generation < 3 || s.Step != keyring.AtRest {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	after := c.atRest()
	for what, value := range map[string][]byte{
		"nothing": nil,
		"an older state": []byte(
			`{"format":1,"cluster":"c1","generation":1,"step":"add","keys":[{"id":"x"},{"id":"y"}]}`),
		"of another cluster":  []byte(`{"format":1,"cluster":"c9","generation":90,"keys":[{"id":"x"}]}`),
		"what means nothing":  []byte(`{"format":1,"cluster":"c1","generation":90,"step":"add","keys":[{"id":"x"}]}`),
		"what is not even it": []byte(`?`),
	} {
		// Only a generation that a server uses is known to be taken when the store forgets it.
		c.eventually("all servers use the newest generation", func() error {
			for _, n := range c.nodes {
				if ring := n.disk(); ring.Generation < after.Generation {
					return fmt.Errorf("%s uses generation %d of %d", n.name, ring.Generation, after.Generation)
				}
			}
			return nil
		})
		restored := c.store.Restore(value)
		c.eventually(what+" is put right", func() error {
			_, revision, _ := c.store.Get(t.Context())
			if revision <= restored {
				return errors.New("not yet")
			}
			if s := c.status(); s.Generation <= after.Generation { // members learn of it a moment later
				return fmt.Errorf("the status is that of before: %+v", s)
			}
			return nil
		})
		if s := c.atRest(); s.Keys[0].ID != after.Keys[0].ID {
			t.Fatalf("%s: %+v, before %+v", what, s, after)
		} else if made := s.Keys[0].Made; !made.Equal(after.Keys[0].Made) {
			t.Errorf("%s: the key was made at %v, and %v before", what, made, after.Keys[0].Made)
		} else {
			after = s
		}
	}
}
