package bgp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/lifecycle"
)

// Objects are the BGPPeers and AddressPools of the cluster. A server has them for its node, for the
// authorizer of nodes, and for the choice of who answers by ARP.
type Objects struct {
	peers, pools cache.SharedIndexInformer
	logger       *slog.Logger
	poolsSynced  cache.InformerSynced

	mu      sync.Mutex
	ways    pool.Ways // of the pools, until they change; nil if it is to be read again
	changed []func()
}

// NewObjects returns objects that are read as the user of config.
func NewObjects(config *rest.Config, logger *slog.Logger) (*Objects, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of BGPPeers: %w", err)
	}
	return newObjects(client, logger)
}

func newObjects(client dynamic.Interface, logger *slog.Logger) (*Objects, error) {
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	o := &Objects{peers: factory.ForResource(Resource).Informer(), pools: factory.ForResource(pool.Resource).Informer(),
		logger: logger}
	registration, err := o.pools.AddEventHandler(anyEvent(o.touch))
	if err == nil {
		o.poolsSynced = registration.HasSynced
		_, err = o.peers.AddEventHandler(anyEvent(o.touch))
	}
	if err != nil {
		return nil, fmt.Errorf("watch BGPPeers and AddressPools: %w", err)
	}
	return o, nil
}

// touch forgets what was read, and then says that something has changed: who is told must not find
// what was before.
func (o *Objects) touch() {
	o.mu.Lock()
	o.ways = nil
	changed := slices.Clone(o.changed)
	o.mu.Unlock()
	for _, call := range changed {
		call()
	}
}

// anyEvent calls a function for each event.
func anyEvent(call func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { call() }, UpdateFunc: func(any, any) { call() }, DeleteFunc: func(any) { call() },
	}
}

// Run follows the objects until ctx ends.
func (o *Objects) Run(ctx context.Context) error {
	run := func(of cache.SharedIndexInformer) func(context.Context) error {
		return func(ctx context.Context) error {
			of.RunWithContext(ctx)
			return nil
		}
	}
	return lifecycle.All(ctx, run(o.peers), run(o.pools))
}

// OnChange calls a function when an object has changed. The function must not block.
func (o *Objects) OnChange(call func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changed = append(o.changed, call)
}

// Synced reports whether all objects are known.
func (o *Objects) Synced() bool {
	return o.poolsSynced() && o.peers.HasSynced()
}

// Ways returns how addresses of pools are announced. known is false before the pools are.
func (o *Objects) Ways() (ways pool.Ways, known bool) {
	if !o.poolsSynced() {
		return nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ways == nil {
		o.ways = pool.WaysOf(readAll(o.pools, pool.Read, o.logger))
	}
	return o.ways, true
}

// NamesSecret reports whether a BGPPeer of a node, which has these labels, names a Secret of
// SecretNamespace. A BGPPeer with a fault has no sessions, and needs none.
func (o *Objects) NamesSecret(node map[string]string, secret string) bool {
	return secret != "" && slices.ContainsFunc(o.peersOf(node),
		func(p peer) bool { return p.fault == nil && p.secret == secret })
}

// peersOf returns the peers of a node, by its labels, in the order of their names.
func (o *Objects) peersOf(node map[string]string) []peer {
	var out []peer
	for _, of := range readAll(o.peers, read, o.logger) {
		if p := parse(of); p.nodes.Matches(labels.Set(node)) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b peer) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func readAll[T metav1.Object](
	from cache.SharedIndexInformer, read func(*unstructured.Unstructured) (T, error), logger *slog.Logger,
) []T {
	var out []T
	for _, obj := range from.GetStore().List() {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		of, err := read(u)
		if err != nil {
			logger.Warn("an object is left out", "err", err)
			continue
		}
		out = append(out, of)
	}
	return out
}
