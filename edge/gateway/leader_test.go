package gateway

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// TestPausesGrow: a status that the API refuses again and again costs few requests, and one success
// ends that.
func TestPausesGrow(t *testing.T) {
	pause, rounds := statusPause, 0
	for total := time.Duration(0); total < time.Hour; rounds++ {
		pause = nextPause(pause, true)
		total += pause
	}
	if rounds > 150 {
		t.Errorf("%d rounds in an hour of failures, want 150 at most", rounds)
	}
	if got := nextPause(pause, false); got != statusPause {
		t.Errorf("after a success: %v, want %v", got, statusPause)
	}
}

// statuses are a rig with the leader's part, which has read all Secrets and ConfigMaps.
type statuses struct {
	*rig
	*statusWriter
	events *record.FakeRecorder
}

func newStatuses(t *testing.T, r *rig) *statuses {
	t.Helper()
	nodes := r.shared.Core().V1().Nodes()
	s, err := NewStatuses(StatusConfig{
		Objects: r.objects, Settings: Settings{HTTPPort: 80, HTTPSPort: 443, Ports: []uint16{80, 443}},
		Nodes: nodes.Lister(), NodesChanged: nodes.Informer(), Secrets: r.client, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	events := record.NewFakeRecorder(16)
	w := &statusWriter{Statuses: s, client: r.client, gateways: r.gateways, services: r.client, recorder: events,
		told: map[toldOf]string{}}
	w.want(view{Objects: r.objects})
	return &statuses{r, w, events}
}

// secret has been read.
func (s *statuses) secret(namespace, name string, data map[string][]byte) {
	s.t.Helper()
	w := s.secrets.watched[types.NamespacedName{Namespace: namespace, Name: name}]
	if w == nil {
		s.t.Fatalf("the Secret %s/%s is not watched", namespace, name)
	}
	s.secrets.set(w, &corev1.Secret{Data: data})
}

// configMap has been read.
func (s *statuses) configMap(namespace, name, text string) {
	s.t.Helper()
	w := s.authorities.watched[types.NamespacedName{Namespace: namespace, Name: name}]
	if w == nil {
		s.t.Fatalf("the ConfigMap %s/%s is not watched", namespace, name)
	}
	s.authorities.set(w, &corev1.ConfigMap{Data: map[string]string{authorityKey: text}})
}

// updated are the writes since the last call, as RESOURCE NAME.
func (s *statuses) updated() (all []string) {
	actions := append(s.api.Actions(), s.rig.client.Actions()...)
	s.api.ClearActions()
	s.rig.client.ClearActions()
	for _, a := range actions {
		if a.GetVerb() == "update" {
			all = append(all, a.GetResource().Resource+"/"+a.GetSubresource())
		}
	}
	return all
}

// synced waits until the informers have the statuses that were written.
func (s *statuses) synced() {
	s.t.Helper()
	ctx := s.t.Context()
	same := func() bool {
		for _, g := range list[gatewayv1.Gateway](s.objects.gateways) {
			now, err := s.rig.gateways.Gateways(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
			if err != nil || len(now.Status.Conditions) != len(g.Status.Conditions) {
				return false
			}
		}
		for _, p := range list[gatewayv1.BackendTLSPolicy](s.objects.policies) {
			now, err := s.rig.gateways.BackendTLSPolicies(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil || len(now.Status.Ancestors) != len(p.Status.Ancestors) {
				return false
			}
		}
		for _, l := range list[gatewayv1.ListenerSet](s.objects.listenerSets) {
			now, err := s.rig.gateways.ListenerSets(l.Namespace).Get(ctx, l.Name, metav1.GetOptions{})
			if err != nil || len(now.Status.Conditions) != len(l.Status.Conditions) {
				return false
			}
		}
		for _, r := range list[gatewayv1.HTTPRoute](s.objects.httpRoutes) {
			now, err := s.rig.gateways.HTTPRoutes(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
			if err != nil || len(now.Status.Parents) != len(r.Status.Parents) {
				return false
			}
		}
		for _, in := range list[networkingv1.Ingress](s.objects.ingresses) {
			now, err := s.rig.client.NetworkingV1().Ingresses(in.Namespace).Get(ctx, in.Name, metav1.GetOptions{})
			if err != nil || len(now.Status.LoadBalancer.Ingress) != len(in.Status.LoadBalancer.Ingress) {
				return false
			}
		}
		for _, c := range list[gatewayv1.GatewayClass](s.objects.classes) {
			if len(c.Status.Conditions) == 0 {
				return false
			}
		}
		return true
	}
	for !same() {
		if ctx.Err() != nil {
			s.t.Fatal("the informers do not get the statuses")
		}
	}
}

func nodeWith(address string, labels map[string]string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: address, Labels: labels}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
	}}
}

// TestStatuses: one of each kind, and nothing is written twice.
func TestStatuses(t *testing.T) {
	on := map[string]string{NodeLabel: "true"}
	r := newRig(t,
		nodeWith("192.0.2.1", on, corev1.ConditionTrue), nodeWith("192.0.2.2", nil, corev1.ConditionTrue),
		nodeWith("192.0.2.3", on, corev1.ConditionFalse),
		read[corev1.Service](t, "metadata: {name: s, namespace: a}\nspec: {ports: [{port: 80, name: http}]}"),
		read[gatewayv1.Gateway](t, `
metadata: {name: g, namespace: a, generation: 3}
spec:
  gatewayClassName: barque
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: web, port: 80, protocol: HTTP}
  - {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}
`),
		read[gatewayv1.Gateway](t,
			"metadata: {name: foreign, namespace: a}\nspec: {gatewayClassName: other, listeners: [{name: web, port: 80, protocol: HTTP}]}"),
		read[gatewayv1.ListenerSet](t,
			"metadata: {name: l, namespace: a}\nspec: {parentRef: {name: g}, listeners: [{name: more, port: 80, protocol: HTTP, hostname: more.example.com}]}"),
		read[gatewayv1.HTTPRoute](t, `
metadata: {name: r, namespace: a}
spec:
  parentRefs: [{name: g, sectionName: web}, {name: l, kind: ListenerSet}, {name: foreign}]
  rules: [{backendRefs: [{name: s, port: 80}]}]
`),
		read[gatewayv1.BackendTLSPolicy](t, `
metadata: {name: p, namespace: a}
spec:
  targetRefs: [{group: '', kind: Service, name: s}]
  validation: {hostname: h, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}
status:
  ancestors: [{ancestorRef: {name: other}, controllerName: example.com/other, conditions: []}]
`),
		read[networkingv1.Ingress](t, `
metadata: {name: i, namespace: a, uid: u, annotations: {nginx.ingress.kubernetes.io/load-balance: ewma}}
spec: {ingressClassName: barque, defaultBackend: {service: {name: s, port: {number: 80}}}}
`),
	)
	s := newStatuses(t, r)
	ctx := t.Context()
	if err := s.write(ctx); err != nil {
		t.Fatal(err)
	}
	gateway := func() *gatewayv1.Gateway {
		g, err := r.gateways.Gateways("a").Get(ctx, "g", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	policy := func() *gatewayv1.BackendTLSPolicy {
		p, err := r.gateways.BackendTLSPolicies("a").Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const good = "Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs Programmed=True/Programmed"
	g := gateway()
	if len(g.Status.Addresses) != 1 || g.Status.Addresses[0].Value != "192.0.2.1" {
		t.Errorf("addresses %v: want the ready node with the gateway", g.Status.Addresses)
	}
	if have := reasons(g.Status.Conditions); have != "Accepted=True/ListenersNotValid Programmed=True/Programmed ResolvedRefs=False/ListenersNotResolved" {
		t.Error(have)
	}
	if g.Status.Conditions[0].ObservedGeneration != 3 {
		t.Errorf("generation %d", g.Status.Conditions[0].ObservedGeneration)
	}
	if l := g.Status.Listeners[0]; l.Name != "web" || l.AttachedRoutes != 1 || reasons(l.Conditions) != good {
		t.Errorf("%+v", l)
	}
	if l := g.Status.Listeners[1]; l.AttachedRoutes != 0 ||
		!strings.Contains(reasons(l.Conditions), "ResolvedRefs=False/InvalidCertificateRef") {
		t.Errorf("without its Secret: %+v", l)
	}
	if n := g.Status.AttachedListenerSets; n == nil || *n != 1 {
		t.Errorf("attachedListenerSets %v", n)
	}
	set, err := r.gateways.ListenerSets("a").Get(ctx, "l", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if have := reasons(set.Status.Conditions); have != "Accepted=True/Accepted Programmed=True/Programmed" {
		t.Error(have)
	}
	if l := set.Status.Listeners; len(l) != 1 || l[0].AttachedRoutes != 1 || reasons(l[0].Conditions) != good {
		t.Errorf("%+v", l)
	}
	route, err := r.gateways.HTTPRoutes("a").Get(ctx, "r", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(route.Status.Parents) != 2 {
		t.Errorf("parents %+v: want those of our class", route.Status.Parents)
	}
	p := policy()
	if len(p.Status.Ancestors) != 2 || p.Status.Ancestors[0].ControllerName != "example.com/other" {
		t.Fatalf("ancestors %+v: want the other controller's, and the Gateway", p.Status.Ancestors)
	}
	if a := p.Status.Ancestors[1]; a.AncestorRef.Name != "g" || *a.AncestorRef.Namespace != "a" ||
		reasons(a.Conditions) != "Accepted=False/NoValidCACertificate ResolvedRefs=False/InvalidCACertificateRef" {
		t.Errorf("%+v", a)
	}
	in, err := r.client.NetworkingV1().Ingresses("a").Get(ctx, "i", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l := in.Status.LoadBalancer.Ingress; len(l) != 1 || l[0].IP != "192.0.2.1" {
		t.Errorf("%+v", l)
	}
	select {
	case e := <-s.events.Events:
		if !strings.Contains(e, "NoEffect") || !strings.Contains(e, "load-balance") {
			t.Error(e)
		}
	default:
		t.Error("no event about an annotation without effect")
	}
	foreign, err := r.gateways.Gateways("a").Get(ctx, "foreign", metav1.GetOptions{})
	if err != nil || len(foreign.Status.Conditions) > 0 {
		t.Errorf("a Gateway of another class: %+v, %v", foreign, err)
	}

	s.synced()
	s.updated()
	if err := s.write(ctx); err != nil {
		t.Fatal(err)
	}
	if again := s.updated(); again != nil || len(s.events.Events) > 0 {
		t.Errorf("written again: %v, with %d events", again, len(s.events.Events))
	}

	// The Secret and the ConfigMap come.
	certificate, key := selfSigned(t, "example.com")
	s.secret("a", "cert", map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key})
	s.configMap("a", "ca", string(certificate))
	if err := s.write(ctx); err != nil {
		t.Fatal(err)
	}
	if have := reasons(
		gateway().Status.Conditions); have != "Accepted=True/Accepted Programmed=True/Programmed ResolvedRefs=True/ResolvedRefs" {
		t.Error(have)
	}
	if have := reasons(
		policy().Status.Ancestors[1].Conditions); have != "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs" {
		t.Error(have)
	}
}

// TestLead: the leader writes statuses by itself, with the Secrets that it reads, until its term
// ends.
func TestLead(t *testing.T) {
	certificate, key := selfSigned(t, "example.com")
	r := newRig(t, nodeWith("192.0.2.1", map[string]string{NodeLabel: "true"}, corev1.ConditionTrue),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert", Namespace: "a"},
			Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}},
		read[gatewayv1.Gateway](t,
			"metadata: {name: g, namespace: a}\nspec: {gatewayClassName: barque, listeners: [{name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}"),
	)
	written, err := r.gateways.Gateways("a").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := newStatuses(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Lead(ctx, r.client, r.gateways, r.client, s.events) }()
	for event := range written.ResultChan() {
		if g, ok := event.Object.(*gatewayv1.Gateway); ok &&
			reasons(g.Status.Conditions) == "Accepted=True/Accepted Programmed=True/Programmed ResolvedRefs=True/ResolvedRefs" {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestInsecureModeIsShown: the condition is there while a Gateway lets in clients without a valid
// certificate, and no longer.
func TestInsecureModeIsShown(t *testing.T) {
	s := newStatuses(t, newRig(t, nodeWith("192.0.2.1", map[string]string{NodeLabel: "true"}, corev1.ConditionTrue),
		read[gatewayv1.Gateway](t, `
metadata: {name: g, namespace: a, generation: 1}
spec:
  gatewayClassName: barque
  tls:
    backend: {clientCertificateRef: {name: own}}
    frontend: {default: {validation: {mode: AllowInsecureFallback, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}}
  listeners: [{name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]
`)))
	ctx, gateways := t.Context(), s.rig.gateways.Gateways("a")
	want := func(step, conditions string) *gatewayv1.Gateway {
		t.Helper()
		if err := s.write(ctx); err != nil {
			t.Fatal(err)
		}
		g, err := gateways.Get(ctx, "g", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if have := reasons(g.Status.Conditions); have != conditions {
			t.Errorf("%s:\n got %s\nwant %s", step, have, conditions)
		}
		return g
	}
	want("nothing is there",
		"Accepted=False/ListenersNotValid Programmed=False/Invalid ResolvedRefs=False/InvalidClientCertificateRef InsecureFrontendValidationMode=True/ConfigurationChanged")
	certificate, key := selfSigned(t, "example.com")
	for _, name := range []string{"cert", "own"} {
		s.secret("a", name, map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key})
	}
	s.configMap("a", "ca", string(certificate))
	s.synced()
	g := want("all is there",
		"Accepted=True/Accepted Programmed=True/Programmed ResolvedRefs=True/ResolvedRefs InsecureFrontendValidationMode=True/ConfigurationChanged")
	s.synced()
	g.Spec.TLS.Frontend.Default.Validation.Mode = gatewayv1.AllowValidOnly
	g.Generation = 2
	if _, err := gateways.Update(ctx, g, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for list[gatewayv1.Gateway](s.objects.gateways)[0].Generation != 2 {
		if ctx.Err() != nil {
			t.Fatal("the informers do not get the Gateway")
		}
	}
	want("only valid ones", "Accepted=True/Accepted Programmed=True/Programmed ResolvedRefs=True/ResolvedRefs")
}
