package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// served is a rig with a node whose ports are sockets of the test.
type served struct {
	*rig
	mu      sync.Mutex
	sockets map[uint16]net.Addr
	refuse  map[uint16]bool
	refused chan uint16
	changed *sync.Cond
	node    *Node
	asked   netip.Addr // by the next client
}

func (s *served) askedFor(net.Conn) (netip.Addr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, nil
}

func newServed(t *testing.T, r *rig, refuse ...uint16) *served {
	t.Helper()
	s := &served{rig: r, sockets: map[uint16]net.Addr{}, refuse: map[uint16]bool{}, refused: make(chan uint16, 4)}
	s.changed = sync.NewCond(&s.mu)
	for _, p := range refuse {
		s.refuse[p] = true
	}
	var err error
	s.node, err = NewNode(NodeConfig{
		Objects: r.objects, Client: r.client,
		Settings: Settings{HTTPPort: 80, HTTPSPort: 443, Ports: []uint16{80, 443, 8080}},
		Listen:   s.listen, Refused: func(port uint16, _ error) { s.refused <- port },
		Logger: slog.New(slog.DiscardHandler), Asked: s.askedFor,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.node.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *served) listen(port uint16) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse[port] {
		return nil, errors.New("in use")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		s.sockets[port] = l.Addr()
		s.changed.Broadcast()
	}
	return l, err
}

// addr waits until a port is open.
func (s *served) addr(port uint16) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sockets[port] == nil {
		s.changed.Wait()
	}
	return s.sockets[port].String()
}

// get asks a port for a host, and returns status and body.
func (s *served) get(port uint16, host string) string {
	s.t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://"+s.addr(port)+"/", nil)
	r.Host, r.RequestURI = host, ""
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(body)))
}

// until asks again until the answer begins with a text.
func (s *served) until(port uint16, host, want string) {
	s.t.Helper()
	for got := ""; !strings.HasPrefix(got, want); got = s.get(port, host) {
		if s.t.Context().Err() != nil {
			s.t.Fatalf("%s:%d: got %q, want %q", host, port, got, want)
		}
	}
}

// backend makes a Service of a server.
func (r *rig) backend(name string, at net.Addr) {
	tcp := at.(*net.TCPAddr)
	r.add(
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	r.add(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a",
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(tcp.Port))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{tcp.IP.String()}}},
	})
}

// TestNode: routes and listeners come and go, and the ports with them.
func TestNode(t *testing.T) {
	r := newRig(t,
		read[networkingv1.Ingress](t,
			"metadata: {name: i, namespace: a}\nspec: {ingressClassName: barque, rules: [{host: i.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]}"),
		read[networkingv1.Ingress](t,
			"metadata: {name: foreign, namespace: a}\nspec: {ingressClassName: other, rules: [{host: o.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]}"),
		read[gatewayv1.Gateway](t, `
metadata: {name: g, namespace: a}
spec: {gatewayClassName: barque, allowedListeners: {namespaces: {from: Same}}, listeners: [{name: web, port: 80, protocol: HTTP, hostname: g.example.com}]}
`),
		read[gatewayv1.HTTPRoute](t,
			"metadata: {name: r, namespace: a}\nspec: {parentRefs: [{name: g}, {name: l, kind: ListenerSet}], rules: [{backendRefs: [{name: s, port: 80}]}]}"),
	)
	backend := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	r.backend("s", backend.Listener.Addr())
	s := newServed(t, r)
	s.until(80, "i.example.com", "200 hello")
	s.until(80, "g.example.com", "200 hello")
	if got := s.get(80, "o.example.com"); !strings.HasPrefix(got, "404") {
		t.Errorf("an Ingress of another class: %s", got)
	}
	r.add(
		read[gatewayv1.ListenerSet](t,
			"metadata: {name: l, namespace: a}\nspec: {parentRef: {name: g}, listeners: [{name: more, port: 8080, protocol: HTTP, hostname: l.example.com}]}"))
	s.until(8080, "l.example.com", "200 hello")
	if got := s.get(8080, "g.example.com"); !strings.HasPrefix(got, "404") {
		t.Errorf("the host of the Gateway at the port of the set: %s", got)
	}
	if err := r.client.NetworkingV1().Ingresses("a").Delete(t.Context(), "i", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(80, "i.example.com", "404")
}

// TestNodeVerifies: a policy and its ConfigMap have their effect when they come, and when they go.
func TestNodeVerifies(t *testing.T) {
	certificate, key := selfSigned(t, "s.example.com")
	own, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t,
		read[gatewayv1.Gateway](t,
			"metadata: {name: g, namespace: a}\nspec: {gatewayClassName: barque, listeners: [{name: web, port: 80, protocol: HTTP}]}"),
		read[gatewayv1.HTTPRoute](t,
			"metadata: {name: r, namespace: a}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: s, port: 80}]}]}"),
	)
	backend := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{own}}
	backend.StartTLS()
	t.Cleanup(backend.Close)
	r.backend("s", backend.Listener.Addr())
	s := newServed(t, r)
	s.until(80, "x", "400") // the backend speaks TLS
	r.add(read[gatewayv1.BackendTLSPolicy](t, `
metadata: {name: p, namespace: a}
spec: {targetRefs: [{group: '', kind: Service, name: s}], validation: {hostname: s.example.com, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}
`))
	s.until(80, "x", "502")
	if r.objects.Names("configmaps", "a", "other") || !r.objects.Names("configmaps", "a", "ca") ||
		r.objects.Names("secrets", "a", "ca") {
		t.Error("the gateway may read other ConfigMaps than the one of the policy")
	}
	r.add(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ca", Namespace: "a"},
			Data: map[string]string{"ca.crt": string(certificate)}})
	s.until(80, "x", "200 hello")
	if err := r.client.CoreV1().ConfigMaps("a").Delete(t.Context(), "ca", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(80, "x", "502")
	if err := r.gateways.BackendTLSPolicies("a").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(80, "x", "400")
}

// TestNodeShowsCertificates: a Secret is read when a listener names it, and shown when it is there.
func TestNodeShowsCertificates(t *testing.T) {
	r := newRig(t,
		read[gatewayv1.Gateway](t,
			"metadata: {name: g, namespace: a}\nspec: {gatewayClassName: barque, listeners: [{name: web, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}"))
	s := newServed(t, r)
	shown := func() string {
		c, err := tls.Dial("tcp", s.addr(443), &tls.Config{ServerName: "x.example.com", InsecureSkipVerify: true})
		if err != nil {
			return ""
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	if got := shown(); got != "" {
		t.Errorf("without the Secret: a certificate of %s", got)
	}
	if !r.objects.Names("secrets", "a", "cert") || r.objects.Names("secrets", "a", "other") ||
		r.objects.Names("pods", "a", "cert") {
		t.Error("the gateway may read other Secrets than the one of the listener")
	}
	certificate, key := selfSigned(t, "x.example.com")
	r.add(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert", Namespace: "a"},
			Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}})
	for shown() != "x.example.com" {
		if t.Context().Err() != nil {
			t.Fatal("the certificate is not shown")
		}
	}
}

// TestNodeVerifiesClients: the ConfigMap of a Gateway is read, and clients need a certificate of
// its CA.
func TestNodeVerifiesClients(t *testing.T) {
	r := newRig(t, read[gatewayv1.Gateway](t, `
metadata: {name: g, namespace: a}
spec:
  gatewayClassName: barque
  tls:
    backend: {clientCertificateRef: {name: own}}
    frontend: {default: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}}
  listeners: [{name: web, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]
`))
	s := newServed(t, r)
	certificate, key := selfSigned(t, "x.example.com")
	own, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	status := func(shown ...tls.Certificate) int {
		client := &http.Transport{DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{Certificates: shown, InsecureSkipVerify: true}}
		q := httptest.NewRequest(http.MethodGet, "https://"+s.addr(443)+"/", nil)
		q.RequestURI = ""
		resp, err := client.RoundTrip(q)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	r.add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert", Namespace: "a"},
		Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}})
	if got := status(own); got != 0 {
		t.Errorf("without the ConfigMap: %d", got)
	}
	for _, name := range []string{"configmaps a/ca", "secrets a/cert", "secrets a/own"} {
		resource, of, _ := strings.Cut(name, " ")
		namespace, name, _ := strings.Cut(of, "/")
		if !r.objects.Names(resource, namespace, name) || r.objects.Names(resource, "b", name) ||
			r.objects.Names(resource, namespace, "other") {
			t.Errorf("the gateway may not read %s %s, or others", resource, of)
		}
	}
	r.add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ca", Namespace: "a"},
		Data: map[string]string{"ca.crt": string(certificate)}})
	for status(own) != 404 {
		if t.Context().Err() != nil {
			t.Fatal("a client with a valid certificate gets no answer")
		}
	}
	if got := status(); got != 0 {
		t.Errorf("without a certificate: %d", got)
	}
}

// TestPortInUse: a port that cannot be opened is told once, and the others are open.
func TestPortInUse(t *testing.T) {
	r := newRig(t,
		read[gatewayv1.Gateway](t,
			"metadata: {name: g, namespace: a}\nspec: {gatewayClassName: barque, listeners: [{name: a, port: 80, protocol: HTTP}, {name: b, port: 8080, protocol: HTTP}]}"))
	s := newServed(t, r, 80)
	if port := <-s.refused; port != 80 {
		t.Errorf("port %d", port)
	}
	s.until(8080, "x", "404")
	if len(s.refused) > 0 {
		t.Error("told twice")
	}
}

func TestAuthorityOf(t *testing.T) {
	one, key := selfSigned(t, "one")
	two, _ := selfSigned(t, "two")
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"one", string(one), []string{"one"}},
		{"two", string(one) + "and\n" + string(two), []string{"one", "two"}},
		{"a key beside it", string(key) + string(one), []string{"one"}},
		{"nothing", "", nil},
		{"no PEM", "certificate", nil},
		{"a key only", string(key), nil},
		{"one that cannot be read", string(one) + string(pemOf("CERTIFICATE", []byte("x"))), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := authorityOf(&corev1.ConfigMap{Data: map[string]string{authorityKey: c.text}})
			if (err == nil) != (c.want != nil) {
				t.Fatalf("%v, %v", got, err)
			}
			if err == nil &&
				!slices.EqualFunc(got.Certificates, c.want,
					func(c *x509.Certificate, name string) bool { return c.DNSNames[0] == name }) {
				t.Errorf("%v", got.Certificates)
			}
		})
	}
}
