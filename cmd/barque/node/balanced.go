package node

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/edge/services"
	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/internal/cutoff"
	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/pki"
)

// balanced are the addresses of Services for which nodes answer, as this server's informers have
// them. The zero value knows none yet.
type balanced struct {
	mu      sync.Mutex
	source  *services.Source
	synced  func() bool
	stale   bool // an object has changed since known was read
	known   []services.Demand
	changed chan struct{}
	// taken are grants that no event tells of yet.
	taken chan taken
}

// taken is an address that a node has got.
type taken struct {
	addr netip.Addr
	node string
}

// takenKept bounds the grants that wait for their events. A node that fails may lose many addresses
// at once; beyond it no event is made.
const takenKept = 1024

var errNotSynced = errors.New("the Services are not known yet")

// use begins to read the informers, and how pools are announced.
func (b *balanced) use(all informers.SharedInformerFactory, announced *bgp.Objects) error {
	of, slices, nodes := all.Core().V1().Services(), all.Discovery().V1().EndpointSlices(), all.Core().V1().Nodes()
	b.mu.Lock()
	b.source = &services.Source{Services: of.Lister(), Slices: slices.Lister(), Nodes: nodes.Lister(),
		ByARP: func(addr netip.Addr) bool {
			ways, _ := announced.Ways() // known: see synced
			return ways.Of(addr).ARP
		}}
	b.stale, b.changed, b.taken = true, make(chan struct{}), make(chan taken, takenKept)
	b.mu.Unlock()
	var synced []cache.InformerSynced
	for _, f := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{of.Informer(), unless(sameAnswered, b.touch)}, {slices.Informer(), unless(balancers.SameNodes, b.touch)},
		{nodes.Informer(), unless(balancers.SameForClients, b.touch)},
	} {
		handler, err := f.informer.AddEventHandler(f.handler)
		if err != nil {
			return err
		}
		synced = append(synced, handler.HasSynced)
	}
	announced.OnChange(b.touch)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.synced = func() bool {
		if _, known := announced.Ways(); !known {
			return false
		}
		for _, is := range synced {
			if !is() {
				return false
			}
		}
		return true
	}
	return nil
}

// unless calls changed for each event of an object, but those after which it is the same for the
// caller. A state is nil before an object is made and after its deletion.
func unless[T any](same func(before, now *T) bool, changed func()) cache.ResourceEventHandler {
	event := func(before, now any) {
		if gone, ok := before.(cache.DeletedFinalStateUnknown); ok {
			before = gone.Obj
		}
		a, _ := before.(*T)
		b, _ := now.(*T)
		if !same(a, b) {
			changed()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { event(nil, obj) },
		UpdateFunc: event,
		DeleteFunc: func(obj any) { event(obj, nil) },
	}
}

// sameAnswered reports whether a Service has changed in nothing that nodes answer by.
func sameAnswered(a, b *corev1.Service) bool {
	answered := func(s *corev1.Service) bool {
		return s != nil && balancers.ConditionOf(s) == balancers.PoolCondition
	}
	if !answered(a) || !answered(b) {
		return !answered(a) && !answered(b)
	}
	return a.Spec.ExternalTrafficPolicy == b.Spec.ExternalTrafficPolicy &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(a.Status, b.Status)
}

// touch notes a change.
func (b *balanced) touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stale {
		b.stale = true
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

// get returns the addresses, and a channel that is closed when they may have changed. The error
// means that they are not known.
func (b *balanced) get() ([]services.Demand, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.synced == nil || !b.synced() {
		return nil, nil, errNotSynced
	}
	if b.stale {
		known, err := b.source.Demands()
		if err != nil {
			return nil, b.changed, err
		}
		b.known, b.stale = known, false
	}
	return b.known, b.changed, nil
}

// granted takes note of a grant, for the event.
func (b *balanced) granted(addr netip.Addr, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.taken <- taken{addr, node}:
	default:
	}
}

// events makes an event of each grant, while this server leads.
func (b *balanced) events(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "barque-addresses")
	defer stop()
	for {
		select {
		case t := <-b.taken:
			all, _, err := b.get()
			if err != nil {
				continue
			}
			for _, d := range all {
				if d.Addr != t.addr {
					continue
				}
				for _, of := range d.Services {
					recorder.Eventf(of, corev1.EventTypeNormal, "nodeAssigned",
						"node %q answers for %v, by ARP or neighbour discovery", t.node, t.addr)
				}
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// startBalanced begins to read the Services.
func (s *server) startBalanced(context.Context) error {
	return s.balanced.use(s.api.Informers(), s.bgp.Load())
}

// balancedRoutine is the leader's work for users: grants need no API.
func (s *server) balancedRoutine() runtime.Routine {
	return runtime.Routine{Name: "addresses", Run: s.balanced.events}
}

// grantsHandler takes the sessions of agents at the API's port.
func (s *server) grantsHandler(agent func(*http.Request) (string, error)) http.Handler {
	return &hold.Handler{
		Leader: s.grants, Agent: agent, LeaderAt: s.leaderAPI, Authenticated: httpserver.Authenticate,
		Sessions: s.holding, Until: s.edgeLife,
	}
}

// newHolding returns the agents' sessions, none yet.
func (s *server) newHolding() *cutoff.Requests {
	return cutoff.New(cutoff.ByCluster, s.judge.Check, func(*x509.Certificate) (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: s.ids.Trust.PoolFor(pki.Clients),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, func(*http.Request) bool { return true })
}

// endHolding ends sessions whose certificates count no more.
func (s *server) endHolding(ctx context.Context) error {
	s.holding.Run(ctx, s.revoked.Changed, s.ids.Trust.Changed)
	return nil
}

// leaderAPI returns the address of the leader's API, as gossip has it.
func (s *server) leaderAPI() (netip.AddrPort, bool) {
	leader, ok := s.store.Leader()
	if !ok {
		return netip.AddrPort{}, false
	}
	m, ok := s.pool.Member(leader.Name)
	return netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort), ok && m.Facts.APIPort != 0
}
