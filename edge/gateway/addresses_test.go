package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/balancers"
)

// pooled is a Gateway that asks for an address of the pool lan.
func pooled(t *testing.T, more string) *gatewayv1.Gateway {
	return read[gatewayv1.Gateway](t, `
metadata: {name: g, namespace: a, uid: u, generation: 1}
spec:
  gatewayClassName: barque
  infrastructure: {labels: {team: x}, annotations: {barque.io/address-pool: lan}}
  listeners: [{name: web, port: 80, protocol: HTTP}]
`+more)
}

func withPools(s *statuses) *statuses {
	s.config.Pool = func(name string) (bool, bool) { return name == "lan", true }
	return s
}

// round writes what is to be written, and waits until the informers have the Services and Gateways.
func (s *statuses) round() {
	s.t.Helper()
	if err := s.write(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	for !s.known() {
		if s.t.Context().Err() != nil {
			s.t.Fatal("the informers do not get the Services")
		}
	}
}

func (s *statuses) known() bool {
	all, err := s.rig.client.CoreV1().Services("").List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, g := range list[gatewayv1.Gateway](s.objects.gateways) {
		now, err := s.rig.gateways.Gateways(g.Namespace).Get(s.t.Context(), g.Name, metav1.GetOptions{})
		if err != nil || !equality.Semantic.DeepEqual(now, g) {
			return false
		}
	}
	have := list[corev1.Service](s.objects.services)
	return len(have) == len(all.Items) && !slices.ContainsFunc(all.Items, func(o corev1.Service) bool {
		now := (view{Objects: s.objects}).Service(nameOf(&o))
		return now == nil || !equality.Semantic.DeepEqual(now, &o)
	})
}

// gatewayNow is a Gateway as TYPE=STATUS/REASON with its addresses, and the message of Programmed.
func (s *statuses) gatewayNow(name string) (text, message string) {
	s.t.Helper()
	g, err := s.rig.gateways.Gateways("a").Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	text = strings.TrimSuffix(reasons(g.Status.Conditions), " ResolvedRefs=True/ResolvedRefs")
	for _, a := range g.Status.Addresses {
		text += " " + string(*a.Type) + " " + a.Value
	}
	for _, c := range g.Status.Conditions {
		if c.Type == string(gatewayv1.GatewayConditionProgrammed) {
			message = c.Message
		}
	}
	return text, message
}

// give writes the status of the Service of a Gateway, as the load balancer does.
func (s *statuses) give(name, reason string, addresses ...string) {
	s.t.Helper()
	services := s.rig.client.CoreV1().Services("a")
	of, err := services.Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	c := metav1.Condition{Type: balancers.PoolCondition, Status: metav1.ConditionTrue, Reason: "Assigned"}
	if reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, "because of "+reason
	}
	of.Status.Conditions, of.Status.LoadBalancer.Ingress = []metav1.Condition{c}, nil
	for _, a := range addresses {
		of.Status.LoadBalancer.Ingress = append(of.Status.LoadBalancer.Ingress,
			balancers.Ingress(netip.MustParseAddr(a), balancers.Wanted(of)))
	}
	if _, err := services.UpdateStatus(s.t.Context(), of, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	for !s.known() {
		if s.t.Context().Err() != nil {
			s.t.Fatal("the informers do not get the status")
		}
	}
}

func (s *statuses) setGateway(g *gatewayv1.Gateway) {
	s.t.Helper()
	if _, err := s.rig.gateways.Gateways("a").Update(s.t.Context(), g, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	for {
		now := (view{Objects: s.objects}).Gateway(nameOf(g))
		if now != nil && equality.Semantic.DeepEqual(now.Spec, g.Spec) {
			return
		}
		if s.t.Context().Err() != nil {
			s.t.Fatal("the informers do not get the Gateway")
		}
	}
}

const (
	waitsText = "Accepted=True/Accepted Programmed=False/AddressNotAssigned"
	goodText  = "Accepted=True/Accepted Programmed=True/Programmed"
)

// TestServiceOfAGateway: it is made, follows the Gateway, and goes when the Gateway needs none. The
// Gateway has the addresses of its status.
func TestServiceOfAGateway(t *testing.T) {
	r := newRig(t, nodeWith("192.0.2.1", map[string]string{NodeLabel: "true"}, corev1.ConditionTrue), pooled(t, ""))
	s := withPools(newStatuses(t, r))
	s.round()
	if text, message := s.gatewayNow("g"); text != waitsText || !strings.Contains(message, "a/g-barque has no address yet") {
		t.Errorf("%s: %s", text, message)
	}
	made := (view{Objects: r.objects}).Service(translate.ServiceName(pooled(t, "")))
	if made == nil || made.Labels["team"] != "x" || made.Annotations[balancers.PoolAnnotation] != "lan" ||
		!metav1.IsControlledBy(made, pooled(t, "")) {
		t.Fatalf("%+v", made)
	}
	s.updated()
	s.give("g-barque", "PoolExhausted")
	s.round()
	if text, message := s.gatewayNow("g"); text != waitsText || message != "because of PoolExhausted" {
		t.Errorf("%s: %s", text, message)
	}
	s.give("g-barque", "", "198.51.100.1")
	s.round()
	if text, _ := s.gatewayNow("g"); text != goodText+" IPAddress 198.51.100.1" {
		t.Error(text)
	}
	s.updated()
	s.round()
	if again := s.updated(); again != nil {
		t.Errorf("written again: %v", again)
	}

	// Other listeners, and a named address.
	next := pooled(t, "  addresses: [{value: 198.51.100.9}]")
	next.Spec.Listeners = append(next.Spec.Listeners, gatewayv1.Listener{Name: "b", Port: 443, Protocol: "HTTP"})
	s.setGateway(next)
	s.round() // the families of a Service cannot change: it is made anew
	s.round()
	made = (view{Objects: r.objects}).Service(translate.ServiceName(next))
	if made == nil || len(made.Spec.Ports) != 2 || made.Annotations[balancers.AddressesAnnotation] != "198.51.100.9" {
		t.Fatalf("%+v", made)
	}
	s.give("g-barque", "AddressInUse")
	s.round()
	if text, message := s.gatewayNow("g"); !strings.HasSuffix(text, "Programmed=False/AddressNotUsable") ||
		message != "because of AddressInUse" {
		t.Errorf("%s: %s", text, message)
	}

	// Without the annotation and the address, the Gateway has the nodes' addresses.
	plain := pooled(t, "")
	plain.Spec.Infrastructure = nil
	s.setGateway(plain)
	s.round()
	s.round()
	if text, _ := s.gatewayNow("g"); text != goodText+" IPAddress 192.0.2.1" {
		t.Error(text)
	}
	if left := list[corev1.Service](r.objects.services); len(left) > 0 {
		t.Errorf("Services %v remain", left)
	}
}

// TestBeforeListenerSetsAreRead: a Service does not wait for a kind that may be missing for good,
// and keeps its ports, which may be those of a set.
func TestBeforeListenerSetsAreRead(t *testing.T) {
	r := newRig(t, nodeWith("192.0.2.1", map[string]string{NodeLabel: "true"}, corev1.ConditionTrue), pooled(t, ""))
	s := withPools(newStatuses(t, r))
	r.objects.listenerSets = informer(r.objects, r.gateways, r.gateways.ListenerSets(""), "listenersets",
		&gatewayv1.ListenerSet{}, cache.Indexers{parentIndex: func(any) ([]string, error) { return nil, nil }})
	s.round()
	made := (view{Objects: r.objects}).Service(translate.ServiceName(pooled(t, "")))
	if made == nil || len(made.Spec.Ports) != 1 {
		t.Fatalf("%+v", made)
	}
	more := made.DeepCopy()
	more.Spec.Ports = append(more.Spec.Ports, corev1.ServicePort{Name: "port-443", Protocol: "TCP", Port: 443})
	if _, err := r.client.CoreV1().Services("a").Update(t.Context(), more, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for !s.known() {
		if t.Context().Err() != nil {
			t.Fatal("the informers do not get the Service")
		}
	}
	s.round()
	if made = (view{Objects: r.objects}).Service(nameOf(made)); len(made.Spec.Ports) != 2 {
		t.Errorf("ports %+v", made.Spec.Ports)
	}
}

// TestServiceOfSomebodyElse: a Service that has the name already is left alone.
func TestServiceOfSomebodyElse(t *testing.T) {
	other := read[corev1.Service](t, "metadata: {name: g-barque, namespace: a}\nspec: {ports: [{port: 1, name: x}]}")
	r := newRig(t, nodeWith("192.0.2.1", map[string]string{NodeLabel: "true"}, corev1.ConditionTrue), pooled(t, ""),
		other)
	s := withPools(newStatuses(t, r))
	s.updated()
	s.round()
	text, message := s.gatewayNow("g")
	if text != waitsText || !strings.Contains(message, "there is another one of that name") {
		t.Errorf("%s: %s", text, message)
	}
	if writes := s.updated(); slices.Contains(writes, "services/") {
		t.Errorf("writes %v", writes)
	}
	faults := s.Faults(time.Now())
	if len(faults) != 1 || faults[0].Object != "Gateway a/g" ||
		!strings.Contains(faults[0].Text, "it has no address: ") {
		t.Errorf("faults %+v", faults)
	}
}

// TestRefusedService: a quota is told by the Gateway, and holds up no other status. The API is not
// asked again at once.
func TestRefusedService(t *testing.T) {
	r := newRig(t, nodeWith("192.0.2.1", map[string]string{NodeLabel: "true"}, corev1.ConditionTrue), pooled(t, ""))
	tries := 0
	r.client.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		tries++
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "g-barque",
			errors.New("exceeded quota: none"))
	})
	s := withPools(newStatuses(t, r))
	s.round()
	s.round()
	text, message := s.gatewayNow("g")
	if text != waitsText || !strings.Contains(message, "exceeded quota") || tries != 1 {
		t.Errorf("%s: %s, tried %d times", text, message, tries)
	}
	if faults := s.Faults(time.Now()); len(faults) != 1 || !strings.Contains(faults[0].Text, "exceeded quota") {
		t.Errorf("faults %+v", faults)
	}
	for uid, last := range s.tried { // its time has come
		last.until = time.Now()
		s.tried[uid] = last
	}
	s.round()
	if tries != 2 {
		t.Errorf("tried %d times", tries)
	}
}

// TestGatewaysThatGetNoService: those of a cluster with a cloud's load balancer, those with an
// address that cannot be, those of a missing class, and those that are refused.
func TestGatewaysThatGetNoService(t *testing.T) {
	for _, c := range []struct {
		name, change  string
		cloud         bool
		want, message string
	}{
		{"a cloud", "", true, waitsText, "a cloud gives addresses"},
		{"two of a family", "  addresses: [{value: 192.0.2.8}, {value: 192.0.2.9}]", false,
			"Accepted=True/Accepted Programmed=False/AddressNotUsable", "two addresses of the family IPv4"},
		{"a name", "  addresses: [{type: Hostname, value: x.example}]", false,
			"Accepted=False/UnsupportedAddress Programmed=False/Invalid", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nodeWith("192.0.2.1", map[string]string{NodeLabel: "true"}, corev1.ConditionTrue),
				pooled(t, c.change))
			s := newStatuses(t, r)
			if !c.cloud {
				withPools(s)
			}
			s.round()
			text, message := s.gatewayNow("g")
			if text != c.want || !strings.Contains(message, c.message) {
				t.Errorf("got %s: %s", text, message)
			}
			if all := list[corev1.Service](r.objects.services); len(all) > 0 {
				t.Errorf("Services %v", all)
			}
		})
	}
}

// TestClassOfAPool: a class with a pool is accepted while there is the pool, and its Gateways have
// addresses of it.
func TestClassOfAPool(t *testing.T) {
	class := func(name, pool string) *gatewayv1.GatewayClass {
		return read[gatewayv1.GatewayClass](t, "metadata: {name: "+name+"}\nspec: {controllerName: barque.io/gateway, "+
			"parametersRef: {group: edge.barque.io, kind: AddressPool, name: "+pool+"}}")
	}
	g := pooled(t, "")
	g.Spec.GatewayClassName, g.Spec.Infrastructure = "pooled", nil
	r := newRig(t, class("pooled", "lan"), class("lost", "none"), g)
	s := withPools(newStatuses(t, r))
	s.round()
	made := (view{Objects: r.objects}).Service(translate.ServiceName(g))
	if made == nil || made.Annotations[balancers.PoolAnnotation] != "lan" {
		t.Errorf("%+v", made)
	}
	for name, want := range map[string]string{"pooled": "Accepted=True/Accepted",
		"lost": "Accepted=False/InvalidParameters", "barque": "Accepted=True/Accepted"} {
		c, err := r.gateways.GatewayClasses().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || reasons(c.Status.Conditions) != want {
			t.Errorf("%s: %s, %v", name, reasons(c.Status.Conditions), err)
		}
	}
}

// TestNodeServesAddresses: the listener of a Gateway is at the address of its Service, and not at
// the nodes' addresses.
func TestNodeServesAddresses(t *testing.T) {
	g := pooled(t, "")
	service := translate.Service(g, translate.Request{}, []int32{80}, nil)
	r := newRig(t, g, service, read[gatewayv1.HTTPRoute](t, `
metadata: {name: r, namespace: a}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: s, port: 80}]}]}
`))
	backend := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	r.backend("s", backend.Listener.Addr())
	s := newServed(t, r)
	if all, _ := s.node.Addressed(); len(all) > 0 {
		t.Errorf("without an address: %v", all)
	}
	_, changed := s.node.Addressed()
	given := service.DeepCopy()
	given.Status.Conditions = []metav1.Condition{{Type: balancers.PoolCondition, Status: metav1.ConditionTrue}}
	given.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		balancers.Ingress(netip.MustParseAddr("198.51.100.1"), balancers.Wanted(service))}
	if _, err := r.client.CoreV1().Services("a").UpdateStatus(t.Context(), given, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-changed
	if all, _ := s.node.Addressed(); !slices.Equal(all, []netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:80")}) {
		t.Errorf("addresses %v", all)
	}
	s.mu.Lock()
	s.asked = netip.MustParseAddr("198.51.100.1")
	s.mu.Unlock()
	s.until(80, "x.example.com", "200 hello")
}
