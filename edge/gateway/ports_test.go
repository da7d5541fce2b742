package gateway

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cachetest "k8s.io/client-go/tools/cache/testing"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/balancers"
)

// sources are informers of a gateway over objects in memory.
type sources struct {
	*Objects
	nodes cache.SharedIndexInformer

	ingress, class, gateway, service, node *cachetest.FakeControllerSource
}

func newSources(t *testing.T) *sources {
	t.Helper()
	informer := func(
		of runtime.Object, indexers cache.Indexers,
	) (cache.SharedIndexInformer, *cachetest.FakeControllerSource) {
		source := cachetest.NewFakeControllerSource()
		t.Cleanup(source.Broadcaster.Shutdown)
		return cache.NewSharedIndexInformer(source, of, 0, indexers), source
	}
	s := &sources{Objects: &Objects{logger: slog.New(slog.DiscardHandler)}}
	none, byNamespace := cache.Indexers{}, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	s.ingresses, s.ingress = informer(&networkingv1.Ingress{}, none)
	s.ingressClasses, s.class = informer(&networkingv1.IngressClass{}, none)
	s.gateways, s.gateway = informer(&gatewayv1.Gateway{}, byNamespace)
	s.services, s.service = informer(&corev1.Service{}, cache.Indexers{takenIndex: portsOfNodes})
	s.nodes, s.node = informer(&corev1.Node{}, none)
	s.listenerSets, _ = informer(&gatewayv1.ListenerSet{}, cache.Indexers{parentIndex: cache.MetaNamespaceIndexFunc})
	s.policies, _ = informer(&gatewayv1.BackendTLSPolicy{}, none)
	s.grants, _ = informer(&gatewayv1.ReferenceGrant{}, byNamespace)
	s.httpRoutes, _ = informer(&gatewayv1.HTTPRoute{}, byNamespace)
	s.grpcRoutes, _ = informer(&gatewayv1.GRPCRoute{}, byNamespace)
	s.tlsRoutes, _ = informer(&gatewayv1.TLSRoute{}, byNamespace)
	// These have no objects.
	empty := func(any) ([]string, error) { return nil, nil }
	s.listenerSets, _ = informer(&gatewayv1.ListenerSet{}, cache.Indexers{parentIndex: empty})
	s.policies, _ = informer(&gatewayv1.BackendTLSPolicy{}, cache.Indexers{targetIndex: empty, mapIndex: empty})
	s.slices, _ = informer(&discoveryv1.EndpointSlice{}, none)
	s.namespaces, _ = informer(&corev1.Namespace{}, none)
	var classes *cachetest.FakeControllerSource
	s.classes, classes = informer(&gatewayv1.GatewayClass{}, none)
	classes.Add(&gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: translate.Class},
		Spec: gatewayv1.GatewayClassSpec{ControllerName: translate.GatewayController}})
	s.class.Add(&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: translate.Class},
		Spec: networkingv1.IngressClassSpec{Controller: translate.IngressController}})
	return s
}

// run runs the informers until the test ends.
func (s *sources) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	all := append(s.own(), s.services, s.slices, s.namespaces, s.nodes)
	for _, i := range all {
		go func() { i.RunWithContext(ctx); done <- struct{}{} }()
	}
	t.Cleanup(func() {
		cancel()
		for range all {
			<-done
		}
	})
}

func ingress(name string, created int64, change ...func(*networkingv1.Ingress)) *networkingv1.Ingress {
	in := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(created, 0)},
		Spec: networkingv1.IngressSpec{IngressClassName: new(translate.Class),
			Rules: []networkingv1.IngressRule{{Host: name + ".example.com"}}}}
	for _, c := range change {
		c(in)
	}
	return in
}

func secured(in *networkingv1.Ingress) { in.Spec.TLS = []networkingv1.IngressTLS{{SecretName: "cert"}} }

func atNodes(name string, ports ...int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: p, Protocol: corev1.ProtocolTCP})
	}
	s.Status.Conditions = []metav1.Condition{{Type: balancers.NodesCondition, Status: metav1.ConditionTrue}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		balancers.Ingress(netip.MustParseAddr("192.0.2.1"), balancers.Wanted(s))}
	return s
}

// TestPortsThatRoutesNeed follows the users of the gateway's ports while objects come and go.
func TestPortsThatRoutesNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSources(t)
		settings := Settings{HTTPPort: 80, HTTPSPort: 443, Ports: []uint16{80, 443, 8080}, HTTP3: true}
		p := NewPorts(s.Objects, settings, corelisters.NewNodeLister(s.nodes.GetIndexer()), s.nodes)
		if _, known := p.PortUser(balancers.Port{Protocol: corev1.ProtocolTCP, Port: 80}); known {
			t.Error("it knows before it has looked")
		}
		ctx, cancel := context.WithCancel(t.Context())
		changes, ended := 0, make(chan error)
		go func() { ended <- p.Follow(ctx, func() { changes++ }) }()
		s.run(t)
		want := func(what string, change int, users map[uint16]string) {
			t.Helper()
			<-time.After(2 * time.Second)
			synctest.Wait()
			for _, port := range []uint16{22, 80, 443, 8080} {
				of := balancers.Port{Protocol: corev1.ProtocolTCP, Port: int32(port)}
				if user, known := p.PortUser(of); user != users[port] || !known {
					t.Errorf("%s: port %d is used by %q, want %q", what, port, user, users[port])
				}
				// Only that one has HTTPS.
				of.Protocol = corev1.ProtocolUDP
				packets := ""
				if port == 443 {
					packets = users[port]
				}
				if user, known := p.PortUser(of); user != packets || !known {
					t.Errorf("%s: the UDP port %d is used by %q, want %q", what, port, user, packets)
				}
			}
			if changes != change {
				t.Errorf("%s: %d changes, want %d", what, changes, change)
			}
		}
		want("nothing", 1, nil)
		s.ingress.Add(ingress("b", 2))
		want("no node has the gateway", 1, nil)
		s.node.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{NodeLabel: ""}}})
		want("an Ingress", 2, map[uint16]string{80: "the Ingress ns/b"})
		s.ingress.Add(ingress("c", 3))
		want("a newer one", 2, map[uint16]string{80: "the Ingress ns/b"})
		s.ingress.Add(ingress("a", 1, secured))
		want("an older one with TLS", 3, map[uint16]string{80: "the Ingress ns/a", 443: "the Ingress ns/a"})
		s.ingress.Add(ingress("x", 0, func(in *networkingv1.Ingress) { in.Spec.IngressClassName = new("nginx") }))
		want("another's", 3, map[uint16]string{80: "the Ingress ns/a", 443: "the Ingress ns/a"})
		s.gateway.Add(
			&gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: gatewayv1.GatewaySpec{
				GatewayClassName: translate.Class,
				Listeners:        []gatewayv1.Listener{{Name: "l", Port: 8080, Protocol: gatewayv1.HTTPProtocolType}}}})
		want("a listener", 4,
			map[uint16]string{80: "the Ingress ns/a", 443: "the Ingress ns/a", 8080: "the Gateway ns/g"})
		own := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "own"},
			Spec: gatewayv1.GatewaySpec{GatewayClassName: translate.Class,
				Addresses: []gatewayv1.GatewaySpecAddress{{Value: "198.51.100.1"}},
				Listeners: []gatewayv1.Listener{{Name: "l", Port: 443, Protocol: gatewayv1.HTTPProtocolType}}}}
		s.gateway.Add(own)
		s.ingress.Delete(ingress("a", 1, secured))
		want("a Gateway with an address of its own", 5,
			map[uint16]string{80: "the Ingress ns/b", 8080: "the Gateway ns/g"})
		s.gateway.Delete(own)
		s.ingress.Add(ingress("a", 1, secured))
		want("without it", 6,
			map[uint16]string{80: "the Ingress ns/a", 443: "the Ingress ns/a", 8080: "the Gateway ns/g"})
		s.service.Add(atNodes("web", 443))
		want("a Service has one of them", 6,
			map[uint16]string{80: "the Ingress ns/a", 443: "the Ingress ns/a", 8080: "the Gateway ns/g"})
		s.ingress.Delete(ingress("a", 1, secured))
		want("the older one has gone", 7, map[uint16]string{80: "the Ingress ns/b", 8080: "the Gateway ns/g"})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestPortsThatServicesHave: only a port that a Service has at the nodes' addresses is taken, and a
// change of that is seen.
func TestPortsThatServicesHave(t *testing.T) {
	s := newSources(t)
	pooled, waiting := atNodes("pooled", 80), atNodes("waiting", 80)
	pooled.Status.Conditions[0].Type = balancers.PoolCondition
	waiting.Status.LoadBalancer.Ingress = nil
	for _, of := range []*corev1.Service{atNodes("web", 443, 9000), pooled, waiting} {
		if err := s.services.GetIndexer().Add(of); err != nil {
			t.Fatal(err)
		}
	}
	settings := Settings{HTTPPort: 80, HTTPSPort: 443}
	taken := settings.ports(s.Objects).Taken
	if len(taken) != 1 || taken[443] != "the Service ns/web" {
		t.Errorf("taken: %v", taken)
	}
	packets := atNodes("dns", 443)
	packets.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	packets.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		balancers.Ingress(netip.MustParseAddr("192.0.2.1"), balancers.Wanted(packets))}
	if len(s.packetsTaken(settings.mine())) != 0 {
		t.Error("a TCP port takes the UDP port")
	}
	if err := s.services.GetIndexer().Add(packets); err != nil {
		t.Fatal(err)
	}
	if got := s.packetsTaken(settings.mine()); len(got) != 1 || !got[443] {
		t.Errorf("UDP ports taken: %v", got)
	}
	seen := 0
	h := holding(func() { seen++ })
	h.OnAdd(pooled, true)
	h.OnUpdate(waiting, waiting)
	if seen != 0 {
		t.Error("a Service that has no port of the nodes is taken for a change")
	}
	h.OnUpdate(waiting, atNodes("waiting", 80))
	h.OnDelete(cache.DeletedFinalStateUnknown{Obj: atNodes("waiting", 80)})
	if seen != 2 {
		t.Errorf("%d changes, want 2", seen)
	}
}
