package nodeproxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// cluster is a world of objects, and a network in which their addresses lead to test servers.
type cluster struct {
	pods     map[string]*corev1.Pod
	nodes    map[string]*corev1.Node
	services map[string]*corev1.Service
	slices   []*discoveryv1.EndpointSlice
	routes   map[string]string // address as dialled → address that listens
	names    map[string][]netip.Addr
}

func get[T any](objects map[string]*T, resource, name string) (*T, error) {
	if object, ok := objects[name]; ok {
		return object, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource(resource), name)
}

func (c *cluster) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	if namespace != "ns" {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return get(c.pods, "pods", name)
}

func (c *cluster) Node(_ context.Context, name string) (*corev1.Node, error) {
	return get(c.nodes, "nodes", name)
}

func (c *cluster) Service(_ context.Context, _, name string) (*corev1.Service, error) {
	return get(c.services, "services", name)
}

func (c *cluster) EndpointSlices(context.Context, string, string) ([]*discoveryv1.EndpointSlice, error) {
	return c.slices, nil
}

func (c *cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	listener, ok := c.routes[address]
	if !ok {
		return nil, fmt.Errorf("no route to %s", address)
	}
	return (&net.Dialer{}).DialContext(ctx, network, listener)
}

func (c *cluster) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	return c.names[host], nil
}

const (
	nodeAddress = "192.0.2.1"
	kubeletPort = 10250
)

// newCluster has one node and one pod on it with one container.
func newCluster() *cluster {
	return &cluster{
		nodes: map[string]*corev1.Node{"node": {
			ObjectMeta: metav1.ObjectMeta{Name: "node"},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeHostName, Address: "node"},
					{Type: corev1.NodeInternalIP, Address: nodeAddress},
				},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort}},
			},
		}},
		pods: map[string]*corev1.Pod{"pod": {
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"},
			Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main"}}},
		}},
		services: map[string]*corev1.Service{},
		routes:   map[string]string{},
		names:    map[string][]netip.Addr{},
	}
}

// authority issues the certificates of one test.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t}
	a.key = a.newKey()
	a.cert = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil,
		a.key)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *authority) issue(name string, usage x509.ExtKeyUsage, ips ...string) tls.Certificate {
	key := a.newKey()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	for _, ip := range ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	cert := a.sign(template, a.cert, key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// newProxy starts a kubelet for the cluster's node, with a certificate for the addresses given,
// and returns a proxy that reaches it.
func newProxy(t *testing.T, c *cluster, kubelet http.Handler, certifiedFor ...string) *Proxy {
	t.Helper()
	ca := newAuthority(t)
	if certifiedFor == nil {
		certifiedFor = []string{nodeAddress}
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != "barque:apiserver" {
			t.Errorf("the kubelet was called by %q", name)
		}
		kubelet.ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{ca.issue("system:node:node", x509.ExtKeyUsageServerAuth, certifiedFor...)},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    ca.pool(),
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are part of the tests
	server.Listener = roomy{server.Listener}
	server.StartTLS()
	t.Cleanup(server.Close)
	c.routes[fmt.Sprintf("%s:%d", nodeAddress, kubeletPort)] = server.Listener.Addr().String()

	config := &tls.Config{Certificates: []tls.Certificate{ca.issue("barque:apiserver", x509.ExtKeyUsageClientAuth)},
		RootCAs: ca.pool()}
	p, err := New(Config{
		Objects:   c,
		TLS:       func() *tls.Config { return config },
		IsKubelet: named,
		Dial:      c.dial,
		Resolve:   c.lookup,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// named returns an error unless the peer's certificate names the node.
func named(node *corev1.Node, peer tls.ConnectionState) error {
	if is := peer.PeerCertificates[0].Subject.CommonName; is != "system:node:"+node.Name {
		return fmt.Errorf("%s answers for node %s", is, node.Name)
	}
	return nil
}

// serve starts a plain server and makes it answer at an address of the cluster's network.
func (c *cluster) serve(t *testing.T, address string, handler http.HandlerFunc) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c.routes[address] = server.Listener.Addr().String()
}

func inNamespace(ctx context.Context) context.Context {
	return genericapirequest.WithNamespace(ctx, "ns")
}

// front is an API server that connects every request to one object with the same options.
func front(t *testing.T, storage rest.Storage, id string, options func(*http.Request) runtime.Object) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(connecting(storage, id, options))
	t.Cleanup(server.Close)
	return server
}

// connecting connects every request to one object with the same options.
func connecting(storage rest.Storage, id string, options func(*http.Request) runtime.Object) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		responder := &responder{w: w}
		handler, err := storage.(rest.Connecter).Connect(inNamespace(r.Context()), id, options(r), responder)
		if err != nil {
			responder.Error(err)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func with(options runtime.Object) func(*http.Request) runtime.Object {
	return func(*http.Request) runtime.Object { return options }
}

type responder struct{ w http.ResponseWriter }

func (r *responder) Object(code int, _ runtime.Object) { r.w.WriteHeader(code) }

func (r *responder) Error(err error) {
	code := http.StatusBadGateway
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code = int(status.Status().Code)
	}
	http.Error(r.w, err.Error(), code)
}

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
