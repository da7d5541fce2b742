package datakeys_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// The defaults are for each run of the tests. A long run has 10,000 objects and 100 kills of the
// leader: -args -seeds 1 -objects 10000 -kills 100.
var (
	seeds   = flag.Int("seeds", 12, "how many random runs")
	objects = flag.Int("objects", 60, "how many objects there are")
	kills   = flag.Int("kills", 12, "how often the leader is killed")
)

const (
	stateKey = "/barque/data-keys"
)

// world is a cluster in virtual time: servers with keys of their own over one store.
type world struct {
	t       *testing.T
	ctx     context.Context
	rnd     *rand.Rand
	store   *raftstore.Store
	servers []*server
	cas     *cas
	former  *pki.Authority // that was dropped last
	running sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{}
	leads   string            // name of the leader
	purges  []string          // names of the servers that have cleaned their disks, in order
	model   map[string]string // key → object, as acknowledged
}

// server is one of them. It may be off.
type server struct {
	world        *world
	name, dir    string
	keys         *datakeys.Keys
	transformers atomic.Pointer[encryption.Transformers] // a new one after each start, and writers use it
	manager      *datakeys.Manager
	shown        atomic.Uint64
	on           atomic.Bool
	purged       atomic.Uint64 // the highest floor
	purgeFails   atomic.Pointer[error]
	purgeTries   atomic.Int64
	noteFails    atomic.Pointer[error] // to note that there are no keys
	removed      atomic.Bool
	file         string // path of its file of providers; empty: it has none
	providers    *provider.Providers
	shownFile    atomic.Uint32
	shownKeys    atomic.Uint32
	plugins      *plugins // in place of its file, if not nil
	stop         context.CancelFunc
	ended        sync.WaitGroup
}

type source struct{ *datakeys.Keys }

func (s source) Epoch(ctx context.Context) (*encryption.Epoch, error) {
	e, err := s.Keys.Epoch(ctx)
	return (*encryption.Epoch)(e), err
}

type stored struct{ *encryption.Objects }

func (o stored) Count(ctx context.Context, e *datakeys.Epoch) (datakeys.Counts, error) {
	n, err := o.Objects.Count(ctx, (*encryption.Epoch)(e))
	return datakeys.Counts(n), err
}

func (o stored) Left(ctx context.Context, e *datakeys.Epoch) (int, error) {
	return o.Objects.Left(ctx, (*encryption.Epoch)(e))
}

func (o stored) Rewrite(ctx context.Context, term uint64, e *datakeys.Epoch, report func(int)) error {
	return o.Objects.Rewrite(ctx, term, (*encryption.Epoch)(e), report)
}

func newWorld(t *testing.T, seed uint64, names ...string) *world {
	w := &world{t: t, ctx: t.Context(), rnd: rand.New(rand.NewPCG(seed, 2)),
		store: raftstore.NewInMemory(raftstore.Options{}), changed: make(chan struct{}), model: map[string]string{}}
	w.cas = &cas{issuer: newCA(t)}
	for _, name := range names {
		w.servers = append(w.servers, w.newServer(name))
	}
	for _, s := range w.servers {
		s.start()
	}
	return w
}

func (w *world) newServer(name string) *server {
	return &server{world: w, name: name, dir: w.t.TempDir()}
}

func (w *world) close() {
	for _, s := range w.servers {
		if s.on.Load() {
			s.halt()
		}
	}
	w.running.Wait()
	if err := w.store.Close(); err != nil {
		w.t.Error(err)
	}
}

func (w *world) leader() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leads, w.leads != ""
}

// gossip wakes the callers that wait for changes of the members.
func (w *world) gossip() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) members() (all []rollover.Member) {
	for _, s := range w.servers {
		if s.removed.Load() {
			continue
		}
		m := rollover.Member{Name: s.name, Role: pki.RoleServer, Alive: s.on.Load(), State: "dead",
			Generation: s.shown.Load()}
		if m.Alive {
			m.State = "alive"
		}
		all = append(all, m)
	}
	return append(all, rollover.Member{Name: "a1", Role: pki.RoleAgent, Alive: true, State: "alive"})
}

func (s *server) start() {
	w := s.world
	at := register.New(w.store, stateKey)
	record := &enroll.Record{Dir: s.dir}
	if old, err := enroll.Load(s.dir); err != nil {
		w.t.Fatal(err)
	} else if old != nil {
		record = old
	}
	keys, err := datakeys.Load(datakeys.KeysConfig{
		Cluster: "c", Path: filepath.Join(s.dir, "data-keys.json"), Sealer: w.cas, Look: at.Look,
		Note: func(encrypts bool) error {
			if err := s.noteFails.Load(); err != nil && !encrypts {
				return *err
			}
			return record.NoteEncryption(encrypts)
		},
		InUse: func(ctx context.Context, id string) (bool, error) { return s.objects().InUse(ctx, id) },
		Took:  func(generation uint64) { s.shown.Store(generation); w.gossip() },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	transformers := encryption.New(source{keys}, stateKey)
	s.startProviders()
	transformers.Use(s.providers)
	for _, r := range []string{"secrets", "configmaps"} {
		transformers.Place(schema.GroupResource{Resource: r}, "/registry/"+r+"/")
	}
	s.providers.Probe(keys.Probes)
	s.keys = keys
	s.transformers.Store(transformers)
	s.manager = datakeys.New(datakeys.Config{
		Server: rollover.Server{Cluster: "c", Store: at, Logger: slog.New(slog.DiscardHandler),
			Changed: func() <-chan struct{} {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.changed
			}},
		Keys: keys, Sealer: w.cas, Members: w.members, Now: time.Now,
		Objects: s.objects(), Self: s.name, Leader: w.leader,
		File: s.fileOf(),
		Purge: func(_ context.Context, floor uint64) error {
			if w.store.Compacted() < floor {
				w.t.Errorf("%s is to clean up to %d, and history goes back to %d", s.name, floor, w.store.Compacted())
			}
			s.purgeTries.Add(1)
			if err := s.purgeFails.Load(); err != nil {
				return *err
			}
			w.mu.Lock()
			w.purges = append(w.purges, s.name)
			w.mu.Unlock()
			s.purged.Store(floor)
			return nil
		},
	})
	ctx, stop := context.WithCancel(w.ctx)
	s.stop = stop
	s.shown.Store(keys.Generation())
	s.on.Store(true)
	s.ended.Go(func() { _ = s.manager.Run(ctx) })
	s.ended.Go(func() { _ = s.providers.Run(ctx) })
	w.gossip()
}

func (s *server) objects() stored {
	return stored{&encryption.Objects{Store: s.world.store, Transformers: s.transformers.Load(), Now: time.Now}}
}

// halt is a crash: the files on disk stay.
func (s *server) halt() {
	s.on.Store(false)
	s.stop()
	s.ended.Wait()
	s.world.gossip()
}

// sealer is the transformer of Secrets on a server.
func (s *server) sealer() storage.Sealer { return s.sealerOf(secretKey(0)) }

// sealerOf is the transformer of the resource of an object.
func (s *server) sealerOf(key string) storage.Sealer {
	return s.transformers.Load().TransformerForResource(
		schema.GroupResource{Resource: strings.Split(key, "/")[2]}).(storage.Sealer)
}

type place string

func (p place) AuthenticatedData() []byte { return []byte(p) }

var _ value.Context = place("")

// write writes an object as package storage does, and takes its time between the encryption and the
// write.
func (w *world) write(s *server, key, object string, slow time.Duration) error {
	for {
		sealed, guard, err := s.sealerOf(key).Seal(w.ctx, []byte(object), place(key))
		if err != nil {
			return err
		}
		select {
		case <-time.After(slow):
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
		slow = 0
		txn := raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: sealed}}}
		if guard.Key != "" {
			txn.Require = append(txn.Require, guard)
		}
		_, err = w.store.Commit(w.ctx, txn)
		var conflict *raftstore.ConflictError
		switch {
		case errors.As(err, &conflict):
			if err := s.sealer().Renew(w.ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		w.mu.Lock()
		w.model[key] = object
		w.mu.Unlock()
		return nil
	}
}

func configKey(i int) string { return fmt.Sprintf("/registry/configmaps/ns/c%d", i) }

func secretKey(i int) string { return fmt.Sprintf("/registry/secrets/ns/s%d", i) }

// lead lets a server lead for a while. Its work ends in the middle.
func (w *world) lead(s *server, during time.Duration) {
	ctx, cancel := context.WithTimeout(w.ctx, during)
	defer cancel()
	w.mu.Lock()
	w.leads = s.name
	w.mu.Unlock()
	_ = s.manager.Lead(ctx, 1)
}

func (w *world) begin() {
	w.t.Helper()
	if err := datakeys.Begin(w.ctx, register.New(w.store, stateKey), w.cas, time.Now()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status(s *server) datakeys.Status {
	w.t.Helper()
	is, err := s.manager.Status(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return is
}

// settle lets a server lead until all is at rest, and checks that nothing was lost.
func (w *world) settle(s *server, enabled bool) {
	w.t.Helper()
	for range 100 {
		w.lead(s, 20*time.Second)
		if is := w.status(s); is.Step == datakeys.AtRest && is.Problem == "" {
			break
		}
	}
	synctest.Wait()
	is := w.status(s)
	if is.Step != datakeys.AtRest || is.Enabled != enabled || enabled && is.Clear > 0 || enabled && len(is.Keys) != 1 ||
		!enabled && len(is.Keys) > 0 {
		w.t.Fatalf("it does not come to rest, or keys or objects are left: %+v", is)
	}
	w.check(enabled)
}

// check reads every object on every server, and on one that has just joined.
func (w *world) check(encrypted bool) {
	w.t.Helper()
	fresh := w.newServer("fresh")
	fresh.start()
	defer fresh.halt()
	synctest.Wait()
	view, err := w.store.View(w.ctx, raftstore.ViewOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	model := maps.Clone(w.model)
	w.mu.Unlock()
	for _, s := range append(slices.Clone(w.servers), fresh) {
		if !s.on.Load() {
			continue
		}
		if err := s.keys.Ready(w.ctx); err != nil {
			w.t.Errorf("%s: %v", s.name, err)
		}
		for key, want := range model {
			item, ok := view.Get(key)
			if !ok {
				w.t.Fatalf("%s is lost", key)
			}
			got, stale, err := s.sealer().TransformFromStorage(w.ctx, item.Value, place(key))
			if err != nil || string(got) != want || stale || encrypted != (encryption.KeyOf(item.Value) != "") {
				w.t.Fatalf("%s on %s: %q (stale %t, under %q), %v; want %q", key, s.name, got, stale,
					encryption.KeyOf(item.Value), err, want)
			}
		}
	}
}

// TestNothingIsLost changes keys at random, while slow writers write, leaders are killed at any
// moment, servers are off for any time, and the CA is exchanged.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed, "s1", "s2", "s3")
				defer w.close()
				enabled := seed%2 == 0
				if enabled {
					w.begin()
				}
				for i := range *objects {
					if err := w.write(w.servers[i%3], secretKey(i), fmt.Sprintf("first %d", i), 0); err != nil {
						t.Fatal(err)
					}
				}
				ctx, stop := context.WithCancel(w.ctx)
				defer stop()
				var writing sync.WaitGroup
				for i := range 4 {
					rnd := rand.New(rand.NewPCG(seed, uint64(i)))
					writing.Go(func() { // each has its own objects, so that their order is known
						for n := 0; ctx.Err() == nil; n++ {
							s := w.servers[rnd.IntN(3)]
							if !s.on.Load() {
								s = w.servers[0]
							}
							key := secretKey(i + 4*rnd.IntN(max(1, *objects/4)))
							if err := w.write(s, key, fmt.Sprintf("writer %d, %d", i, n),
								time.Duration(rnd.Int64N(int64(20*time.Second)))); err != nil {
								t.Errorf("write: %v", err)
								return
							}
						}
					})
				}
				for range *kills {
					w.turn(&enabled)
				}
				for _, s := range w.servers {
					if !s.on.Load() {
						s.start()
					}
				}
				stop()
				writing.Wait()
				w.settle(w.servers[w.rnd.IntN(3)], enabled)
			})
		})
	}
}

// turn is a part of a run: perhaps a change of the keys, and a leader that is killed.
func (w *world) turn(enabled *bool) {
	all := []datakeys.Change{datakeys.Rotate, datakeys.Rotate, datakeys.Renew, datakeys.Enable, datakeys.Disable}
	change := all[w.rnd.IntN(len(all))]
	var refused *datakeys.RefusedError
	switch err := w.servers[0].manager.Apply(w.ctx, datakeys.Order{Change: change}); {
	case errors.As(err, &refused):
	case err != nil:
		w.t.Fatal(err)
	case change == datakeys.Disable:
		*enabled = false
	case change == datakeys.Enable:
		*enabled = true
	}
	if s := w.servers[2]; w.rnd.IntN(3) == 0 { // the first two are always on
		if s.on.Load() {
			s.halt()
		} else {
			s.start()
		}
	}
	if w.rnd.IntN(6) == 0 {
		w.exchangeCA()
	}
	w.lead(w.servers[w.rnd.IntN(2)], time.Duration(w.rnd.Int64N(int64(12*time.Second))))
}

// cas are the CAs of the cluster, as pki.Trust has them on each server.
type cas struct {
	mu            sync.Mutex
	issuer, other *pki.Authority // other is the one before; nil when it was dropped
}

func newCA(t *testing.T) *pki.Authority {
	t.Helper()
	ca, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// hold changes the CAs while servers open keys. Only the test itself calls it.
func (c *cas) hold(issuer, other *pki.Authority) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.issuer, c.other = issuer, other
}

// Seal implements datakeys.Sealer.
func (c *cas) Seal(purpose string, plain, bound []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.issuer.Seal(purpose, plain, bound)
}

// Open implements datakeys.Sealer.
func (c *cas) Open(purpose string, sealed, bound []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	plain, err := c.issuer.Open(purpose, sealed, bound)
	if err != nil && c.other != nil {
		plain, err = c.other.Open(purpose, sealed, bound)
	}
	return plain, err
}

// Digest implements datakeys.Sealer.
func (c *cas) Digest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.issuer.Digest()
}

// exchangeCA makes a step of an exchange of the CA, as package exchange does: the old one goes only
// when the keys are sealed with the new one.
func (w *world) exchangeCA() {
	switch old := w.cas.other; {
	case old == nil:
		w.cas.hold(newCA(w.t), w.cas.issuer)
	default:
		sealed, err := w.servers[0].manager.SealedBy(w.cas.Digest())
		if err != nil {
			w.t.Error(err)
		}
		if sealed {
			w.former = old
			w.cas.hold(w.cas.issuer, nil)
		}
	}
}
