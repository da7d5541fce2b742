package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// newManager is this server's part in the rotation of gossip keys.
func (s *server) newManager(own *keyring.Own) *keyring.Manager {
	return keyring.New(keyring.Config{
		ClusterID: s.record.Cluster.ID, Store: ringStore{s.store.Store}, Own: own, Sealer: s.ids.Trust,
		Members: s.keyMembers, Changed: s.pool.Changed,
		Logger: s.logger.With("part", "gossip"),
	})
}

// gossipKeys are what other nodes are told.
func (s *server) gossipKeys() join.GossipKeys {
	ring := s.record.GossipRing()
	return join.GossipKeys{Generation: ring.Generation, Keys: ring.Keys}
}

// fetchKeys asks the other servers.
func (s *server) fetchKeys(ctx context.Context, generation uint64) (keyring.Ring, error) {
	others := slices.DeleteFunc(s.record.Servers(), func(k join.Server) bool { return k.Name == s.options.Name })
	keys, err := credentials.FetchKeys(ctx, others, generation, credentials.AskKeys(s.ids.Trust, s.ids.Peer.Certificate(), s.record.ClusterID()))
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
