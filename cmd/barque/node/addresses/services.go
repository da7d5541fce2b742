package addresses

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/edge/services"
	"github.com/barque/barque/internal/balancers"
)

// ofServices are the addresses of Services for which nodes answer, as this server's informers have
// them. The zero value knows none yet.
type ofServices struct {
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
func (b *ofServices) use(all informers.SharedInformerFactory, announced *bgp.Objects) error {
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
func (b *ofServices) touch() {
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
func (b *ofServices) get() ([]services.Demand, <-chan struct{}, error) {
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
func (b *ofServices) granted(addr netip.Addr, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.taken <- taken{addr, node}:
	default:
	}
}

// events makes an event of each grant, while this server leads.
func (b *ofServices) events(ctx context.Context, client kubernetes.Interface) error {
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
