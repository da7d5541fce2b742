package node

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// keyFiles are the files of the keys that all servers have, in a server's pki directory.
func keyFiles() map[pki.KeyUse]string {
	return map[pki.KeyUse]string{pki.CAKey: caKey, pki.AccountKey: serviceAccountKey}
}

// caHome is where a server keeps its CAs: the bundle in the record, the keys in files beside the
// other keys. The bundle tells which key is for what by its public key, so the files need not
// change at one moment: a key is written before a bundle that needs it, and dropped after one that
// does not.
type caHome struct {
	dataDir string
	record  *record
	trust   *pki.Trust

	mu      sync.Mutex
	keys    map[pki.KeyUse][]crypto.Signer
	retired map[pki.KeyNeed]bool // of keys, those that have no use any more; not one that is held for a bundle to come
}

// loadCA reads a server's CAs and keys.
func loadCA(dataDir string, r *record) (*caHome, error) {
	h := &caHome{dataDir: dataDir, record: r, keys: map[pki.KeyUse][]crypto.Signer{}, retired: map[pki.KeyNeed]bool{}}
	for use, name := range keyFiles() {
		path := filepath.Join(pkiDir(dataDir), name)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("the key of %s: %w", use, err)
		}
		if h.keys[use], err = pki.ParseKeys(data); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	var err error
	if h.trust, err = pki.NewTrust(r.ca(), h.all()...); err != nil {
		return nil, fmt.Errorf("%s: the cluster's CA: %w", r.path(), err)
	}
	needs, err := r.ca().NeedsKeys()
	if err != nil {
		return nil, fmt.Errorf("%s: the cluster's CA: %w", r.path(), err)
	}
	for _, need := range needs {
		if _, err := h.key(need.Digest); err != nil {
			return nil, fmt.Errorf("%s does not hold %s: copy the file from another server", filepath.Join(pkiDir(dataDir), keyFiles()[need.Use]), need)
		}
	}
	// What a crash has left is dropped by the first Tidy: a disk that is full keeps no server from
	// starting. A key that the bundle does not know may be held for one to come, by this server
	// alone: a crash before that was made known leaves it until the next exchange.
	retired, err := r.ca().RetiredKeys()
	if err != nil {
		return nil, fmt.Errorf("%s: the cluster's CA: %w", r.path(), err)
	}
	for _, of := range retired {
		h.retired[of] = true
	}
	return h, nil
}

// Keys implements exchange.Home.
func (h *caHome) Keys() []crypto.Signer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all()
}

// all are the keys for all uses. The caller holds mu.
func (h *caHome) all() []crypto.Signer {
	return slices.Concat(h.keys[pki.CAKey], h.keys[pki.AccountKey])
}

// Hold implements exchange.Home.
func (h *caHome) Hold(use pki.KeyUse, key crypto.Signer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keep(use, append(slices.Clone(h.keys[use]), key))
}

// keep writes the keys down. The caller holds mu.
func (h *caHome) keep(use pki.KeyUse, keys []crypto.Signer) error {
	data, err := pki.MarshalKeys(keys)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(pkiDir(h.dataDir), keyFiles()[use]), data, 0o600); err != nil {
		return err
	}
	h.keys[use] = keys
	return nil
}

// Adopt implements exchange.Home.
func (h *caHome) Adopt(b pki.Bundle) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	needs, err := b.NeedsKeys()
	if err != nil {
		return err
	}
	if err := h.record.believe(b); err != nil {
		return err
	}
	if err := h.trust.Set(b, h.all()...); err != nil {
		return err
	}
	for _, of := range needs {
		delete(h.retired, of)
	}
	for use, keys := range h.keys {
		for _, key := range keys {
			if of, err := keyOf(use, key); err == nil && !slices.Contains(needs, of) {
				h.retired[of] = true
			}
		}
	}
	return nil
}

func keyOf(use pki.KeyUse, key crypto.Signer) (pki.KeyNeed, error) {
	digest, err := pki.KeyDigest(key)
	return pki.KeyNeed{Use: use, Digest: digest}, err
}

// Tidy implements exchange.Home.
func (h *caHome) Tidy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var failed error
	for use := range keyFiles() {
		var kept []crypto.Signer
		for _, key := range h.keys[use] {
			if of, err := keyOf(use, key); err != nil || !h.retired[of] {
				kept = append(kept, key)
			}
		}
		if len(kept) < len(h.keys[use]) {
			failed = errors.Join(failed, h.keep(use, kept))
		}
	}
	if failed == nil {
		clear(h.retired)
	}
	return failed
}

// key returns the key with the digest for another server, PEM.
func (h *caHome) key(digest string) ([]byte, error) {
	for _, key := range h.Keys() {
		if is, err := pki.KeyDigest(key); err == nil && is == digest {
			return pki.MarshalKey(key)
		}
	}
	return nil, errors.New("this server does not have that key")
}

// caKeyInStore is where the state of the exchange of the CA lies in the store. It is none of the
// API's objects.
const caKeyInStore = "/barque/ca"

// caShelf is the place in the store.
type caShelf struct{ store caStore }

// caStore is what the exchange of the CA needs of the store.
type caStore interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
	Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error)
}

// Get implements exchange.Shelf.
func (s caShelf) Get(ctx context.Context) ([]byte, uint64, error) {
	view, err := s.store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return nil, 0, err
	}
	item, _ := view.Get(caKeyInStore)
	return item.Value, item.ModRevision, nil
}

// Put implements exchange.Shelf.
func (s caShelf) Put(ctx context.Context, state []byte, revision, term uint64) error {
	_, err := s.store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: caKeyInStore, ModRevision: revision}},
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: caKeyInStore, Value: state}},
		Term:    term,
	})
	return err
}

// Follow implements exchange.Shelf.
func (s caShelf) Follow(ctx context.Context, f func(state []byte, revision uint64)) error {
	for {
		view, err := s.store.View(ctx, raftstore.ViewOptions{Stale: true})
		if err == nil {
			item, _ := view.Get(caKeyInStore)
			f(item.Value, item.ModRevision)
			err = s.watch(ctx, view.Revision(), f)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, raftstore.ErrClosed):
			<-ctx.Done() // the store says by itself why it stopped
			return nil
		case !errors.Is(err, raftstore.ErrCompacted): // that one is answered by another look
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (s caShelf) watch(ctx context.Context, after uint64, f func(state []byte, revision uint64)) error {
	w, err := s.store.Watch(raftstore.WatchOptions{Prefix: caKeyInStore, After: after})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range batch.Events {
			switch {
			case event.Item.Key != caKeyInStore:
			case event.Kind == raftstore.Deleted:
				f(nil, 0)
			default:
				f(event.Item.Value, event.Item.ModRevision)
			}
		}
	}
}

// startExchange follows what the cluster says of its CAs.
func (s *server) startExchange(ctx context.Context) error {
	s.exchange = exchange.New(exchange.Config{
		Cluster: s.record.Cluster.ID, Trust: s.ids.trust, Shelf: caShelf{s.store}, Home: s.ids.home,
		Fetch: s.fetchKey, Members: s.exchangeMembers, Changed: s.pool.Changed,
		Now: time.Now, Logger: s.logger.With("part", "ca"),
	})
	return s.stack.Start(ctx, lifecycle.Component{Name: "CAs", Run: s.exchange.Run})
}

// keyTimeout bounds how long one server is asked for a key.
const keyTimeout = 5 * time.Second

// fetchKey asks the other servers for a key that all servers have: the CA's, or that of service
// accounts. Whoever has it is a server of this cluster, as is this one: both prove it by their
// certificates.
func (s *server) fetchKey(ctx context.Context, digest string) ([]byte, error) {
	err := errors.New("no other server is known")
	for _, other := range s.record.servers() {
		if other.Name == s.options.Name {
			continue
		}
		key, e := s.keyFrom(ctx, other, digest)
		if e == nil {
			return key, nil
		}
		err = fmt.Errorf("%s: %w", other.Name, e)
	}
	return nil, err
}

func (s *server) keyFrom(ctx context.Context, other join.Server, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	client, err := join.NewClient(other.API.String(), s.ids.trust, s.ids.peer.Certificate(), time.Now)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.SharedKey(ctx, digest)
}

// exchangeMembers are all nodes that the exchange of the CA has to do with.
func (s *server) exchangeMembers() ([]exchange.Member, error) {
	nodes := s.api.Informers().Core().V1().Nodes()
	if !nodes.Informer().HasSynced() {
		return nil, join.ErrNotYet
	}
	list, err := nodes.Lister().List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	var servers []string
	for _, m := range s.store.Members() {
		servers = append(servers, m.Name)
	}
	made := map[string]time.Time{}
	for _, n := range list {
		if isServers(n) || runsBarque(n) || isMember(n, s.pool.Member) { // others are foreign nodes
			made[n.Name] = n.CreationTimestamp.Time
		}
	}
	return exchangeMembers(time.Now(), servers, made, s.pool.Members()), nil
}

// registering is how long an agent may be alive before it has its Node.
const registering = 2 * time.Minute

// exchangeMembers are the members of the store, the nodes in the API, with the time when each was
// made, and agents that have joined just now and are not among these yet. Whoever else gossips was
// removed: a server that is no member, though its Node may be there yet, and an agent without a
// Node. They get no certificates any more, so waiting for them would be for ever. What gossip
// remembers of one that went before the Node of its name was made is another machine's.
func exchangeMembers(now time.Time, servers []string, nodes map[string]time.Time, pool []gossip.Member) []exchange.Member {
	all := map[string]*exchange.Member{}
	for name := range nodes {
		all[name] = &exchange.Member{Name: name}
	}
	for _, name := range servers {
		all[name] = &exchange.Member{Name: name, Server: true}
	}
	for _, m := range pool {
		is, alive := all[m.Name], m.State == gossip.Alive
		made, registered := nodes[m.Name]
		switch {
		case !alive && registered && made.After(m.Since):
			continue
		case m.Role == pki.RoleServer && (is == nil || !is.Server):
			delete(all, m.Name)
			continue
		case is == nil && (!alive || now.Sub(m.Since) > registering):
			continue
		case is == nil:
			is = &exchange.Member{Name: m.Name}
			all[m.Name] = is
		}
		is.Alive, is.Generation, is.Signer = alive, m.Facts.Trust, m.ProvenBy
	}
	var out []exchange.Member
	for _, m := range all {
		out = append(out, *m)
	}
	return out
}

// isServer tells whether a server of that name is a member of the store.
func (s *server) isServer(name string) bool {
	return slices.ContainsFunc(s.store.Members(), func(m raftstore.Member) bool { return m.Name == name })
}

// accountKeys are those of service accounts' tokens, at this moment.
func (s *server) accountKeys() (sign crypto.Signer, others []crypto.PublicKey) {
	return s.ids.trust.AccountKeys(time.Now())
}
