package gateway

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/balancers"
)

// A port of the nodes has one owner. A Service has it while its status lists it. Otherwise it is
// the gateway's while a route or a listener needs it. Whoever comes second is told who has it.
// Gateways with addresses of their own need no port of the nodes' addresses.

// takenIndex has the Services at the nodes' own addresses by their ports there.
const takenIndex = "barque.port-of-nodes"

// portsOfNodes lists the ports that a Service has at the nodes' own addresses.
func portsOfNodes(obj any) ([]string, error) {
	s, ok := obj.(*corev1.Service)
	if !ok || balancers.ConditionOf(s) != balancers.NodesCondition {
		return nil, nil
	}
	var out []string
	for _, held := range balancers.HeldBy(s) {
		for _, port := range held.Ports {
			out = append(out, port.String())
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// portsOfGateway lists the addresses, with their ports, that the Service of a Gateway has.
func portsOfGateway(obj any) (out []string) {
	s, ok := obj.(*corev1.Service)
	if !ok || !balancers.OfGateway(s) || balancers.ConditionOf(s) != balancers.PoolCondition {
		return nil
	}
	if owner := metav1.GetControllerOf(s); owner != nil {
		out = append(out, string(owner.UID))
	}
	for _, held := range balancers.HeldBy(s) {
		for _, port := range held.Ports {
			out = append(out, held.Address.String()+" "+port.String())
		}
	}
	return out
}

// holding calls f when the ports have changed that Services have at the nodes' addresses, or that
// those of Gateways have at theirs.
func holding(f func()) cache.ResourceEventHandler {
	event := func(before, now any) {
		if gone, ok := before.(cache.DeletedFinalStateUnknown); ok {
			before = gone.Obj
		}
		had, _ := portsOfNodes(before) // fails never
		has, _ := portsOfNodes(now)
		if !slices.Equal(had, has) || !slices.Equal(portsOfGateway(before), portsOfGateway(now)) {
			f()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { event(nil, obj) },
		UpdateFunc: event,
		DeleteFunc: func(obj any) { event(obj, nil) },
	}
}

// mine are the ports that the gateway may have.
func (s *Settings) mine() []uint16 {
	all := append([]uint16{s.HTTPPort, s.HTTPSPort}, s.Ports...)
	slices.Sort(all)
	return slices.Compact(all)
}

// taken returns the ports of the gateway that belong to Services, with the Service.
func (o *Objects) taken(ports []uint16) map[uint16]string {
	return o.takenBy(corev1.ProtocolTCP, ports)
}

// packetsTaken returns the UDP ports that belong to Services. They have no HTTP/3.
func (o *Objects) packetsTaken(ports []uint16) map[uint16]bool {
	out := map[uint16]bool{}
	for port := range o.takenBy(corev1.ProtocolUDP, ports) {
		out[port] = true
	}
	return out
}

func (o *Objects) takenBy(protocol corev1.Protocol, ports []uint16) map[uint16]string {
	out := map[uint16]string{}
	for _, port := range ports {
		found, err := o.services.GetIndexer().ByIndex(takenIndex, balancers.Port{Protocol: protocol,
			Port: int32(port)}.String())
		if err != nil {
			continue // the index is there: NewObjects has added it
		}
		for _, obj := range found {
			if s, ok := obj.(*corev1.Service); ok {
				out[port] = "the Service " + s.Namespace + "/" + s.Name
			}
		}
	}
	return out
}

// Ports knows the ports of the nodes that routes need, for the load balancer of Services.
type Ports struct {
	objects  *Objects
	settings Settings
	nodes    corelisters.NodeLister
	changes  cache.SharedIndexInformer // of nodes
	known    atomic.Bool
}

// NewPorts returns the ports that the routes of these objects need.
func NewPorts(objects *Objects, settings Settings, nodes corelisters.NodeLister,
	changes cache.SharedIndexInformer) *Ports {
	return &Ports{objects: objects, settings: settings, nodes: nodes, changes: changes}
}

// PortUser returns the oldest object that needs a port of the nodes, such as "the Ingress
// default/web"; "" for a port that none needs. It is one also while a Service has the port. known
// is false before the objects are known.
func (p *Ports) PortUser(port balancers.Port) (user string, known bool) {
	if !p.known.Load() {
		return "", false
	}
	if !slices.Contains(p.settings.mine(), uint16(port.Port)) {
		return "", true
	}
	return p.users()[port], true
}

// users returns the users of all ports of the gateway; none where no node has the gateway. A port
// with HTTPS is one of UDP, too.
func (p *Ports) users() map[balancers.Port]string {
	out := map[balancers.Port]string{}
	with, err := p.nodes.List(onNodes)
	if err != nil || len(with) == 0 {
		return out
	}
	since := map[balancers.Port]metav1.Object{}
	use := func(number uint16, https bool, by metav1.Object, kind string) {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			port := balancers.Port{Protocol: protocol, Port: int32(number)}
			if protocol == corev1.ProtocolUDP && !(https && p.settings.HTTP3) {
				continue
			}
			if other := since[port]; other == nil || older(by, other) {
				since[port], out[port] = by, "the "+kind+" "+by.GetNamespace()+"/"+by.GetName()
			}
		}
	}
	ports := p.settings.ports(p.objects)
	ports.Taken = nil // it is about the need
	for _, in := range list[networkingv1.Ingress](p.objects.ingresses) {
		if p.objects.ours(in) {
			for _, port := range translate.IngressPorts(ports, in) {
				use(port, port == ports.HTTPS, in, "Ingress")
			}
		}
	}
	cluster := view{Objects: p.objects}
	for _, g := range list[gatewayv1.Gateway](p.objects.gateways) {
		if !translate.Ours(cluster.GatewayClass(string(g.Spec.GatewayClassName))) {
			continue
		}
		if _, own := translate.Requested(cluster, g); own {
			continue // it has ports of its own addresses
		}
		for _, l := range translate.TranslateGateway(cluster, ports, g).Listeners {
			if l.Serves {
				use(l.Model.Port, l.Model.Serve == model.HTTPS, g, "Gateway")
			}
		}
		for _, s := range translate.TranslateListenerSets(cluster, ports, g) {
			for _, l := range s.Listeners {
				if l.Serves {
					use(l.Model.Port, l.Model.Serve == model.HTTPS, s.Set, "ListenerSet")
				}
			}
		}
	}
	return out
}

// onNodes selects the nodes with a gateway.
var onNodes = func() labels.Selector {
	selector, err := labels.Parse(NodeLabel)
	if err != nil {
		panic(err) // it is a constant
	}
	return selector
}()

func older(a, b metav1.Object) bool {
	at, than := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(at.Compare(than.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(),
		b.GetName())) < 0
}

// Follow calls changed when the users of ports have changed, and at first when they are known. It
// ends with ctx.
func (p *Ports) Follow(ctx context.Context, changed func()) error {
	wake := make(chan struct{}, 1)
	poke := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	o := p.objects
	follow := func(i cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
		registration, err := i.AddEventHandler(h)
		if err == nil {
			context.AfterFunc(ctx,
				func() { _ = i.RemoveEventHandler(registration) }) // fails only for another informer's
		}
		return err
	}
	all := each(func(types.NamespacedName, any) { poke() })
	for _, i := range []cache.SharedIndexInformer{o.ingresses, o.ingressClasses, o.classes, o.gateways,
		o.listenerSets} {
		if err := follow(i, all); err != nil {
			return err
		}
	}
	if err := follow(p.changes, unlike(onNode, poke)); err != nil {
		return err
	}
	if !o.waitForSync(ctx) {
		return nil
	}
	for last := map[balancers.Port]string(nil); ; {
		if users := p.users(); last == nil || !maps.Equal(last, users) {
			p.known.Store(true)
			last = users
			changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		timer := time.NewTimer(statusPause) // many may change at once
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func onNode(n *corev1.Node) bool { return balancers.HasGateway(n) }

// unlike calls f when an object comes or goes for which is holds, or that changes.
func unlike[T any](is func(*T) bool, f func()) cache.ResourceEventHandler {
	holds := func(obj any) bool {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		t, ok := obj.(*T)
		return ok && is(t)
	}
	event := func(before, now any) {
		if holds(before) != holds(now) {
			f()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { event(nil, obj) }, UpdateFunc: event, DeleteFunc: func(obj any) { event(obj, nil) },
	}
}
