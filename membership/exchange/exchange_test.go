package exchange

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/membership/rollovertest"
	"github.com/barque/barque/pki"
)

// home is a server's, in memory.
type home struct {
	mu      sync.Mutex
	trust   *pki.Trust
	keys    []crypto.Signer
	retired []crypto.Signer
	full    bool // nothing more can be removed
	stuck   bool // no other bundle can be written
}

var errFull = errors.New("no space left on device")

func (h *home) Keys() []crypto.Signer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.keys)
}

func (h *home) Hold(_ pki.KeyUse, k crypto.Signer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = append(h.keys, k)
	return nil
}

func (h *home) Adopt(b pki.Bundle) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stuck {
		return errFull
	}
	if err := h.trust.Set(b, h.keys...); err != nil {
		return err
	}
	needs, err := b.NeedsKeys()
	for _, k := range h.keys {
		if !slices.ContainsFunc(needs, func(n pki.KeyNeed) bool { return isOf(k, n.Digest) }) {
			h.retired = append(h.retired, k)
		}
	}
	return err
}

func (h *home) Tidy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.retired) > 0 && h.full {
		return errFull
	}
	h.keys = slices.DeleteFunc(h.keys, func(k crypto.Signer) bool { return slices.Contains(h.retired, k) })
	h.retired = nil
	return nil
}

// node is a server, or an agent, which has no exchange.
type node struct {
	name     string
	home     *home
	exchange *Exchange
	stop     func()
	alive    bool
	removed  bool

	signer     string // of its certificates
	generation uint64 // in its gossip
}

// cluster is some nodes that exchange their CA.
type cluster struct {
	t     *testing.T
	store *rollovertest.Store

	mu      sync.Mutex
	nodes   []*node
	changed chan struct{}

	hangs bool // each server that is asked for a key is silent
	told  func(frontProxyCAs []byte) error

	said syncbuf.Buffer // the log of the servers
}

func newCluster(t *testing.T, servers, agents int) *cluster {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ca.Key()
	if err != nil {
		t.Fatal(err)
	}
	account, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := pki.NewBundle(ca).WithAccountKey(account.Public())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, store: rollovertest.New(), changed: make(chan struct{}),
		told: func([]byte) error { return nil }}
	for i := range servers + agents {
		n := &node{name: fmt.Sprintf("s%d", i+1), signer: ca.Digest(), generation: 1}
		keys := []crypto.Signer{key, account}
		if i >= servers {
			n.name, keys = fmt.Sprintf("a%d", i-servers+1), nil
		}
		trust, err := pki.NewTrust(bundle, keys...)
		if err != nil {
			t.Fatal(err)
		}
		n.home = &home{trust: trust, keys: keys}
		c.tell(n, func() { c.nodes = append(c.nodes, n) })
		c.start(n)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			c.kill(n)
		}
	})
	return c
}

// start runs a node, and keeps its certificates as the real one does.
func (c *cluster) start(n *node) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	if n.home.Keys() != nil {
		e := New(
			Config{Trust: n.home.trust, Home: n.home, Members: c.members, Fetch: c.fetch,
				Told: func(cas []byte) error { return c.told(cas) },
				Server: rollover.Server{Cluster: "c1", Store: c.store, Changed: c.gossip,
					Logger: slog.New(slog.NewTextHandler(&c.said, nil))},
			})
		c.tell(n, func() { n.exchange = e })
		wg.Go(func() { e.Run(ctx) })
	} else {
		wg.Go(func() { c.agent(ctx, n) })
	}
	wg.Go(func() {
		for {
			changed := n.home.trust.Changed()
			c.tell(n, func() { n.signer, n.generation = n.home.trust.Digest(), n.home.trust.Bundle().Generation })
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	})
	n.stop = func() { cancel(); wg.Wait() }
	c.tell(n, func() { n.alive = true })
}

func (c *cluster) kill(n *node) {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
	c.tell(n, func() { n.alive = false })
}

// agent takes over a server's bundle.
func (c *cluster) agent(ctx context.Context, n *node) {
	for {
		changed := c.gossip()
		c.mu.Lock()
		for _, s := range c.nodes {
			if s.exchange != nil && s.alive && s.generation > n.home.trust.Bundle().Generation {
				if err := n.home.trust.Set(s.home.trust.Bundle()); err != nil {
					c.t.Error(err)
				}
			}
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// tell changes the gossip of a node.
func (c *cluster) tell(_ *node, change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cluster) gossip() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *cluster) members() ([]rollover.Member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []rollover.Member
	for _, n := range c.nodes {
		if n.removed {
			continue
		}
		role := pki.RoleAgent
		if n.exchange != nil {
			role = pki.RoleServer
		}
		out = append(out,
			rollover.Member{Name: n.name, Role: role, Alive: n.alive, Generation: n.generation, Signer: n.signer})
	}
	return out, nil
}

func (c *cluster) fetch(ctx context.Context, digest string) ([]byte, error) {
	c.mu.Lock()
	hangs := c.hangs
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		for _, k := range n.home.Keys() {
			if n.alive && isOf(k, digest) {
				return pki.MarshalKey(k)
			}
		}
	}
	return nil, errors.New("nobody who lives has it")
}

// lead makes a server the leader for a time, with the only term in which leaders may write.
func (c *cluster) lead(n *node, for_ time.Duration) {
	term := c.store.Elect()
	ctx, cancel := context.WithTimeout(c.t.Context(), for_)
	defer cancel()
	if err := n.exchange.Lead(ctx, term); err != nil {
		c.t.Error(err)
	}
	synctest.Wait()
}

// settled checks that all nodes that live believe one CA for a purpose and have its certificates,
// and that servers have their keys only.
func (c *cluster) settled(generation uint64) {
	c.t.Helper()
	var first *node
	for _, n := range c.nodes {
		b, keys := n.home.trust.Bundle(), 2
		if !n.alive {
			continue
		}
		if first == nil {
			first = n
		}
		if b.Separate() {
			keys += 2
		}
		for _, p := range pki.Purposes() {
			if !slices.Equal(b.For(p), first.home.trust.Bundle().For(p)) || len(b.For(p)) != 1 {
				c.t.Errorf("%s believes %d CAs for %s, or others than %s", n.name, len(b.For(p)), p, first.name)
			}
			if n.exchange != nil {
				if _, err := n.home.trust.CAsFor(p)[0].Key(); err != nil {
					c.t.Errorf("%s cannot issue for %s: %v", n.name, p, err)
				}
			}
		}
		if b.Generation != generation || b.Step != pki.Settled || len(b.CAs) != 1 || n.signer != first.signer {
			c.t.Errorf("%s: generation %d, step %q, %d CAs, certificates of %.8s", n.name, b.Generation, b.Step,
				len(b.CAs), n.signer)
		}
		if sign, _ := n.home.trust.AccountKeys(time.Now()); n.exchange != nil &&
			(len(n.home.Keys()) != keys || !n.home.trust.CanIssue() || sign == nil) {
			c.t.Errorf("%s has %d keys, and can issue: %v", n.name, len(n.home.Keys()), n.home.trust.CanIssue())
		}
	}
}

func (c *cluster) apply(n *node, change Change) {
	c.t.Helper()
	if _, err := n.exchange.Apply(c.t.Context(), Request{Change: change}); err != nil {
		c.t.Errorf("%s at %s: %v", change, n.name, err)
	}
	synctest.Wait()
}

func TestTheCAIsExchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 2)
		synctest.Wait()
		old := c.nodes[0].signer
		c.lead(c.nodes[1], time.Minute)
		if c.store.Writes() != 0 {
			t.Errorf("%d writes although nobody asked", c.store.Writes())
		}
		c.apply(c.nodes[0], Begin)
		c.lead(c.nodes[1], time.Minute)
		c.settled(4)
		if c.nodes[0].signer == old || c.store.Writes() != 3 {
			t.Errorf("the CA is another one: %v; %d writes, want 3", c.nodes[0].signer != old, c.store.Writes())
		}
		c.lead(c.nodes[2], time.Minute)
		if c.store.Writes() != 3 {
			t.Error("an exchange that is done makes writes")
		}
		c.apply(c.nodes[2], Begin)
		c.lead(c.nodes[0], time.Minute)
		c.settled(7)
	})
}

// A node that is away is waited for, unless the operator forces the step; a node that comes back
// goes on.
func TestTheExchangeWaitsForWhoIsAway(t *testing.T) {
	for _, who := range []int{2, 3} { // a server, an agent
		for _, force := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %v", who, force), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, 3, 1)
					synctest.Wait()
					away := c.nodes[who]
					c.kill(away)
					c.apply(c.nodes[0], Begin)
					c.lead(c.nodes[1], 2*time.Minute)
					is := c.nodes[0].exchange.Status()
					if is.Step != pki.Spreading || len(is.Waiting) != 1 ||
						!strings.Contains(is.Waiting[0], away.name+" shows no life") {
						t.Fatalf("without %s: %+v", away.name, is)
					}
					if force {
						c.apply(c.nodes[1], Force)
						c.lead(c.nodes[1], 2*time.Minute)
						c.settled(5)
						return
					}
					c.start(away)
					c.lead(c.nodes[1], time.Minute)
					c.settled(4)
				})
			})
		}
	}
}

func TestUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		old := c.nodes[0].signer
		c.apply(c.nodes[0], Begin)
		if _, err := c.nodes[1].exchange.Apply(t.Context(), Request{Change: Begin}); !errors.Is(err, pki.ErrStep) {
			t.Errorf("two at once: %v", err)
		}
		c.apply(c.nodes[1], Undo)
		c.lead(c.nodes[2], time.Minute)
		c.settled(3)
		if c.nodes[0].signer != old {
			t.Error("the CA is another one")
		}
		if _, err := c.nodes[1].exchange.Apply(t.Context(), Request{Change: Change("more")}); !errors.Is(err,
			ErrChange) {
			t.Errorf("got %v", err)
		}
	})
}

// TestServersThatAreNotKnownByKeys are named before an exchange of the CA and in it. That of the
// key of service accounts is none of theirs.
func TestServersThatAreNotKnownByKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		e := c.nodes[0].exchange
		e.cas.Unrecorded = func() []string { return []string{"s3"} }
		for _, change := range []Change{"", BeginAccounts, Undo, Begin} {
			if change != "" {
				c.apply(c.nodes[0], change)
			}
			if is := e.Status(); slices.Equal(is.Unrecorded, []string{"s3"}) != (change != BeginAccounts) {
				t.Errorf("after %q: %+v", change, is)
			}
		}
	})
}

// TestAnOrderForAnotherExchange: an operator has seen one exchange, and another one, of another
// kind or at another step, is under way when the order comes.
func TestAnOrderForAnotherExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		order := func(change Change, seen uint64) error {
			_, err := c.nodes[1].exchange.Apply(t.Context(), Request{Change: change, Seen: seen})
			synctest.Wait()
			return err
		}
		settled := c.nodes[0].exchange.Status()
		c.apply(c.nodes[0], BeginAccounts)
		seen := c.nodes[0].exchange.Status()
		c.apply(c.nodes[0], Undo)
		if err := order(Begin, settled.Generation); !errors.Is(err, ErrMoved) {
			t.Errorf("a beginning that was ordered before another exchange: %v", err)
		}
		c.apply(c.nodes[0], Begin)
		for _, change := range []Change{Undo, Force} {
			before := c.nodes[0].exchange.Status()
			if err := order(change, seen.Generation); !errors.Is(err, ErrMoved) {
				t.Errorf("%s of the exchange before: %v", change, err)
			}
			if now := c.nodes[0].exchange.Status(); now.Generation != before.Generation || now.Forced {
				t.Errorf("%s of the exchange before has changed it: %+v", change, now)
			}
		}
		if err := order(Undo, c.nodes[0].exchange.Status().Generation); err != nil {
			t.Errorf("of this one: %v", err)
		}
		c.lead(c.nodes[2], time.Minute)
		c.settled(5)
	})
}

// The only server that has the new CA's key is lost before another one fetched it. No server can go
// on, and any can undo it, also while a server that was asked for the key is silent.
func TestTheServerThatBeganIsLost(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, 1)
			synctest.Wait()
			old := c.nodes[0].signer
			for _, n := range c.nodes[1:3] {
				c.kill(n)
			}
			c.apply(c.nodes[0], Begin)
			c.kill(c.nodes[0])
			c.tell(nil, func() { c.hangs = hangs })
			c.start(c.nodes[1])
			c.start(c.nodes[2])
			c.lead(c.nodes[1], time.Minute)
			if is := c.nodes[1].exchange.Status(); is.Step != pki.Spreading ||
				!hangs && !strings.Contains(is.Problem, "nobody who lives has it") {
				t.Errorf("without the key: %+v", is)
			}
			if _, err := c.nodes[2].exchange.Apply(t.Context(), Request{Change: Begin}); !errors.Is(err, ErrBehind) {
				t.Errorf("begin by one that is behind: %v", err)
			}
			began := time.Now()
			c.apply(c.nodes[2], Undo)
			if took := time.Since(began); took != 0 {
				t.Errorf("undoing waited %v for who has the key", took)
			}
			c.lead(c.nodes[1], time.Minute)
			c.settled(3)
			c.tell(nil, func() { c.hangs = false })
			c.start(c.nodes[0])
			c.lead(c.nodes[1], time.Minute)
			c.settled(3)
			c.apply(c.nodes[2], Begin)
			c.lead(c.nodes[1], time.Minute)
			c.settled(6)
			if c.nodes[1].signer == old {
				t.Error("the exchange that followed has changed nothing")
			}
		})
	}
}

// A key that cannot be removed when its CA is retired, as on a full disk, is removed as soon as
// that works; until then the server says so, and the exchange goes on.
func TestARetiredKeyIsRemovedInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		ill := c.nodes[2]
		full := func(is bool) {
			ill.home.mu.Lock()
			defer ill.home.mu.Unlock()
			ill.home.full = is
		}
		full(true)
		c.apply(c.nodes[0], Begin)
		c.lead(c.nodes[1], time.Minute)
		if is := ill.exchange.Status(); is.Step != pki.Settled || !strings.Contains(is.Problem, errFull.Error()) ||
			len(ill.home.Keys()) != 6 {
			t.Errorf("with %d keys: %+v", len(ill.home.Keys()), is)
		}
		<-time.After(59 * time.Minute)
		if n := strings.Count(c.said.String(), errFull.Error()); n < 30 || n > 65 {
			t.Errorf("in an hour it has said %d times that the disk is full", n)
		}
		full(false)
		<-time.After(time.Minute)
		synctest.Wait()
		if is := ill.exchange.Status(); is.Problem != "" {
			t.Errorf("when there is space: %+v", is)
		}
		c.settled(4)
	})
}

// A node that is removed while the exchange waits for it is waited for no more, without any change
// in gossip.
func TestWhoIsRemovedIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		away := c.nodes[3]
		c.kill(away)
		c.apply(c.nodes[0], Begin)
		time.AfterFunc(10*time.Second, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			away.removed = true
		})
		c.lead(c.nodes[1], time.Minute)
		c.settled(4)
	})
}

// A backup that is restored brings an old state back, or none, or that of another cluster. No node
// goes back.
func TestARestoredBackup(t *testing.T) {
	for name, state := range map[string]string{
		"older":           `{"format":2,"cluster":"c1","bundle":BUNDLE}`,
		"another cluster": `{"format":2,"cluster":"other","bundle":BUNDLE}`,
		"not a CA":        `{"format":2,"cluster":"c1","bundle":{"generation":99,"cas":["x"]}}`,
		"newer format":    `{"format":9,"cluster":"c1","bundle":{"generation":99,"cas":["x"]}}`,
		"newer form":      `{"format":9,"cluster":"c1","bundle":["x"]}`,
		"damaged":         `{`,
		"without a CA":    `{"format":2,"cluster":"c1","bundle":{"generation":99,"step":"spreading"}}`,
		"empty":           ``,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, 1)
				synctest.Wait()
				before, err := json.Marshal(c.nodes[0].home.trust.Bundle())
				if err != nil {
					t.Fatal(err)
				}
				c.apply(c.nodes[0], Begin)
				c.lead(c.nodes[1], time.Minute)
				c.store.Restore([]byte(strings.ReplaceAll(state, "BUNDLE", string(before))))
				c.lead(c.nodes[2], time.Minute)
				c.settled(4)
				if is := c.nodes[1].exchange.Status(); is.Generation != 4 || is.Step != pki.Settled {
					t.Errorf("the status is %+v", is)
				}
				if strings.HasPrefix(name, "newer") {
					return // it is a newer Barque's, and left alone
				}
				c.apply(c.nodes[0], Begin)
				c.lead(c.nodes[1], time.Minute)
				c.settled(7)
			})
		})
	}
}

// Servers are killed, leaders change and operators interfere at any moment: no step is lost, and
// all agree in the end.
func TestTheExchangeSurvivesFaults(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			c := newCluster(t, 3, 2)
			synctest.Wait()
			c.apply(c.nodes[0], []Change{Begin, BeginAccounts}[seed%2])
			for range 40 {
				n := c.nodes[random.IntN(len(c.nodes))]
				switch {
				case n.stop == nil:
					c.start(n)
				case random.IntN(2) == 0:
					c.kill(n)
				case n.exchange != nil && random.IntN(4) == 0:
					change := []Change{Begin, BeginAccounts, Undo, BeginJoint}[random.IntN(4)]
					if _, err := n.exchange.Apply(t.Context(), Request{Change: change}); err != nil &&
						!errors.Is(err, pki.ErrStep) && !errors.Is(err, ErrBehind) &&
						!errors.Is(err, rollovertest.ErrConflict) {
						t.Errorf("seed %d: %v", seed, err)
					}
				}
				if n.exchange != nil && n.stop != nil {
					c.lead(n, time.Duration(random.IntN(5000))*time.Millisecond)
				}
			}
			for _, n := range c.nodes {
				if n.stop == nil {
					c.start(n)
				}
			}
			synctest.Wait()
			c.lead(c.nodes[random.IntN(3)], time.Minute)
			c.settled(c.nodes[0].home.trust.Bundle().Generation)
			if t.Failed() {
				t.Errorf("seed %d", seed)
			}
		})
	}
}
