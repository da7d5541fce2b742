package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// KeysPath answers with the keyring.Status of the gossip keys, in a KeysAnswer. POST takes the
// parameter "change", which is rotate or undo, and "force" and "dryRun", which are true or missing.
// RBAC says who may.
const KeysPath = "/barque/v1/keys"

// KeysAnswer is the answer to GET and POST.
type KeysAnswer struct {
	keyring.Status
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"` // nothing was changed
	// Unfinished tells that what was asked for was begun and goes on, or that it is not known
	// whether it was.
	Unfinished bool `json:"unfinished,omitempty"`
	NoLeader   bool `json:"noLeader,omitempty"` // there has been none for long; nothing was changed
}

// gossipRing returns the gossip keys on disk.
func (r *record) gossipRing() keyring.Ring {
	r.mu.Lock()
	defer r.mu.Unlock()
	return keyring.Ring{Generation: r.Cluster.KeyGeneration, Keys: slices.Clone(r.Cluster.GossipKeys)}
}

// setGossipRing writes other gossip keys to the disk, in a file that is its owner's alone.
func (r *record) setGossipRing(ring keyring.Ring) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys, generation := r.Cluster.GossipKeys, r.Cluster.KeyGeneration
	r.Cluster.GossipKeys, r.Cluster.KeyGeneration = ring.Keys, ring.Generation
	if err := r.save(); err != nil {
		r.Cluster.GossipKeys, r.Cluster.KeyGeneration = keys, generation
		return err
	}
	return nil
}

// ownRing is this node's ring, on its disk and in its pool.
func ownRing(r *record, pool *gossip.Pool) *keyring.Own {
	return keyring.NewOwn(r.gossipRing(), r.setGossipRing, func(ring keyring.Ring) error { return pool.SetKeys(ring.Keys, ring.Generation) })
}

// newManager is this server's part in the rotation of gossip keys.
func (s *server) newManager(own *keyring.Own) *keyring.Manager {
	return keyring.New(keyring.Config{
		ClusterID: s.record.Cluster.ID, Store: ringStore{s.store.Store}, Own: own, Sealer: s.ids.trust,
		Members: s.keyMembers, Changed: s.pool.Changed,
		Logger: s.logger.With("part", "gossip"),
	})
}

// gossipKeys are what other nodes are told.
func (s *server) gossipKeys() join.GossipKeys {
	ring := s.record.gossipRing()
	return join.GossipKeys{Generation: ring.Generation, Keys: ring.Keys}
}

// fetchKeys asks the other servers.
func (s *server) fetchKeys(ctx context.Context, generation uint64) (keyring.Ring, error) {
	others := slices.DeleteFunc(s.record.servers(), func(k join.Server) bool { return k.Name == s.options.Name })
	keys, err := fetchKeys(ctx, others, generation, askKeys(s.ids.trust, s.ids.peer.Certificate(), s.record.clusterID()))
	return keyring.Ring{Generation: keys.Generation, Keys: keys.Keys}, err
}

// driveKeys is leader work.
func (s *server) driveKeys() runtime.Routine {
	return runtime.Routine{Name: "gossip keys", Run: func(ctx context.Context, _ kubernetes.Interface) error {
		return s.keys.Drive(ctx, runtime.TermFrom(ctx))
	}}
}

// keyMembers are all members of the cluster: those in the pool, and those that the store or the API
// know of and the pool does not, because they have been away since before this server started.
func (s *server) keyMembers() []keyring.Member {
	var out []keyring.Member
	for _, m := range s.pool.Members() {
		member := keyring.Member{Name: m.Name, Role: m.Role, Alive: m.State == gossip.Alive, State: string(m.State), Generation: m.Facts.KeyGeneration}
		if err := s.keysBarred(m.Name, m.Role); err != nil && !errors.Is(err, join.ErrNotYet) {
			member.Barred = err.Error()
		}
		out = append(out, member)
	}
	nodes, err := s.api.Informers().Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		s.logger.Warn("cannot list nodes", "err", err)
	}
	return addAway(out, s.store.Members(), nodes)
}

// addAway adds the members that the pool does not know. Whose Node is that of a server and who is
// no member of the store is a former server: it gets no keys, and nobody waits for it. The Node of
// a foreign node is no member's.
func addAway(pool []keyring.Member, store []raftstore.Member, nodes []*corev1.Node) []keyring.Member {
	add := func(name, role, barred string) {
		if !slices.ContainsFunc(pool, func(m keyring.Member) bool { return m.Name == name }) {
			pool = append(pool, keyring.Member{Name: name, Role: role, State: "not in the pool", Barred: barred})
		}
	}
	for _, m := range store {
		add(m.Name, pki.RoleServer, "")
	}
	for _, n := range nodes {
		switch {
		case isServers(n):
			add(n.Name, pki.RoleServer, noServer(n.Name).Error())
		case nodeleases.IsMember(n) || runsBarque(n):
			add(n.Name, pki.RoleAgent, "")
		}
	}
	return pool
}

func noServer(name string) error { return fmt.Errorf("%q is no server of this cluster any more", name) }

// keysBarred tells why a node gets no gossip keys: it was taken out of the cluster. A server
// belongs to it while it is a member of the store, an agent while it has a Node object.
func (s *server) keysBarred(name, role string) error {
	if role == pki.RoleServer {
		if slices.ContainsFunc(s.store.Members(), func(m raftstore.Member) bool { return m.Name == name }) {
			return nil
		}
		return noServer(name)
	}
	nodes := s.api.Informers().Core().V1().Nodes()
	if !nodes.Informer().HasSynced() {
		return join.ErrNotYet
	}
	if _, err := nodes.Lister().Get(name); apierrors.IsNotFound(err) {
		return fmt.Errorf("%q is no node of this cluster any more: it has no Node object", name)
	}
	return nil
}

// ringStore keeps the state of the gossip keys in the store, beside the API's objects.
type ringStore struct{ store *raftstore.Store }

const ringKey = "/barque/gossip-keys"

// Get implements keyring.Store.
func (s ringStore) Get(ctx context.Context) ([]byte, uint64, error) {
	item, _, err := s.store.Get(ctx, ringKey)
	return item.Value, item.ModRevision, err
}

// Put implements keyring.Store.
func (s ringStore) Put(ctx context.Context, value []byte, revision, term uint64) error {
	_, err := s.store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: ringKey, ModRevision: revision}},
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: ringKey, Value: value}},
		Term:    term,
	})
	var conflict *raftstore.ConflictError
	if errors.As(err, &conflict) {
		return keyring.ErrConflict
	}
	return err
}

// followAgain is after how long a watch that ended begins anew.
const followAgain = time.Second

// Follow implements keyring.Store.
func (s ringStore) Follow(ctx context.Context, f func([]byte, uint64)) error {
	for {
		err := s.follow(ctx, f)
		if ctx.Err() != nil || errors.Is(err, raftstore.ErrClosed) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followAgain): // history has gone, or the server is in quarantine
		}
	}
}

func (s ringStore) follow(ctx context.Context, f func([]byte, uint64)) error {
	watcher, err := s.store.Watch(raftstore.WatchOptions{Prefix: ringKey})
	if err != nil {
		return err
	}
	defer watcher.Close()
	view, err := s.store.View(ctx, raftstore.ViewOptions{Stale: true})
	if err != nil {
		return err
	}
	item, _ := view.Get(ringKey)
	f(item.Value, item.ModRevision)
	for {
		batch, err := watcher.Next(ctx)
		if err != nil {
			return err
		}
		if batch.Revision <= view.Revision() {
			continue // the view had it
		}
		for _, e := range batch.Events {
			switch {
			case e.Item.Key != ringKey:
			case e.Kind == raftstore.Deleted:
				f(nil, 0)
			default:
				f(e.Item.Value, e.Item.ModRevision)
			}
		}
	}
}

// newRefresher gets gossip keys from other servers when this node may not have the newest ones.
func newRefresher(self string, pool *gossip.Pool, own *keyring.Own, fetch func(context.Context, uint64) (keyring.Ring, error), config keyring.RefresherConfig) *keyring.Refresher {
	config.Own, config.Changed, config.Fetch = own, pool.Changed, fetch
	config.Seen = func() (generation uint64, anyServer bool) {
		for _, m := range pool.Members() {
			if m.Role == pki.RoleServer && m.State == gossip.Alive && m.Name != self {
				generation, anyServer = max(generation, m.Facts.KeyGeneration), true
			}
		}
		return generation, anyServer
	}
	return keyring.NewRefresher(config)
}

// keysHandler serves KeysPath.
func keysHandler(keys *keyring.Manager) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		force, dryRun := query.Get("force") == "true", query.Get("dryRun") == "true"
		var err error
		switch change := query.Get("change"); {
		case r.Method == http.MethodGet:
		case r.Method != http.MethodPost:
			http.Error(w, "only GET and POST are served here", http.StatusMethodNotAllowed)
			return
		case change == "rotate":
			err = keys.Rotate(r.Context(), force, dryRun)
		case change == "undo":
			err = keys.Undo(r.Context(), dryRun)
		default:
			http.Error(w, fmt.Sprintf("the parameter change is %q: want rotate or undo", change), http.StatusBadRequest)
			return
		}
		var answer KeysAnswer
		begun := err == nil && r.Method == http.MethodPost && !dryRun
		if err == nil {
			answer.Status, err = keys.Status(r.Context())
		}
		status := answer.judge(err, begun)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			return // the client has gone
		}
	})
}

// judge writes down what the error means, and returns the HTTP status for it. What was begun goes
// on, though the keys could not be looked at afterwards.
func (a *KeysAnswer) judge(err error, begun bool) int {
	var refused *keyring.RefusedError
	if err == nil {
		return http.StatusOK
	}
	a.Error = err.Error()
	switch {
	case begun, errors.Is(err, raftstore.ErrUnknownOutcome):
		a.Unfinished = true
	case errors.As(err, &refused), errors.Is(err, keyring.ErrConflict):
		a.Refused = true
		return http.StatusConflict
	case errors.Is(err, raftstore.ErrLeaderless):
		a.NoLeader = true
	}
	return http.StatusServiceUnavailable
}
