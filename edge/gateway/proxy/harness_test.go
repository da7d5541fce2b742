package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/endpoints"
	"github.com/barque/barque/edge/gateway/model"
)

// bench is a proxy with Services that are servers of the test.
type bench struct {
	t     testing.TB
	proxy *Proxy

	mu       sync.Mutex
	services map[string][]netip.AddrPort
	app      map[string]string
	certs    map[string]*tls.Certificate
	cas      map[string]*certs.Authority
	users    map[string]string
	sockets  map[uint16]net.Addr
	packets  map[uint16]net.PacketConn
	refuse   error // of UDP ports
	opened   *sync.Cond
	remote   net.Addr // of clients; nil is their own
}

// elsewhere is a listener whose clients have another address.
type elsewhere struct {
	net.Listener
	bench *bench
}

// Accept implements net.Listener.
func (e elsewhere) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()
	e.bench.mu.Lock()
	defer e.bench.mu.Unlock()
	if err != nil || e.bench.remote == nil {
		return c, err
	}
	return conns.From(c, c, e.bench.remote), nil
}

func newBench(t testing.TB, config Config) *bench {
	b := &bench{t: t, services: map[string][]netip.AddrPort{}, app: map[string]string{},
		certs: map[string]*tls.Certificate{}, cas: map[string]*certs.Authority{}, sockets: map[uint16]net.Addr{},
		packets: map[uint16]net.PacketConn{}}
	b.opened = sync.NewCond(&b.mu)
	config.Listen = func(port uint16) (net.Listener, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			b.mu.Lock()
			b.sockets[port] = l.Addr()
			b.opened.Broadcast()
			b.mu.Unlock()
		}
		return elsewhere{l, b}, err
	}
	config.ListenPacket = b.listenPacket
	config.Certificate = func(name types.NamespacedName) *tls.Certificate {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.certs[name.Name]
	}
	config.Authority = func(name types.NamespacedName) *certs.Authority {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.cas[name.Name]
	}
	config.Users = func(types.NamespacedName, bool) map[string]string { return b.users }
	b.proxy = New(config, endpoints.New(b.lookup))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.proxy.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// listenPacket opens a UDP port.
func (b *bench) listenPacket(port uint16) (net.PacketConn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return nil, b.refuse
	}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err == nil {
		b.packets[port] = socket
		b.opened.Broadcast()
	}
	return socket, err
}

// lookup makes a Service with one slice; its port is 80.
func (b *bench) lookup(name types.NamespacedName) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	addrs, ok := b.services[name.Name]
	if !ok {
		return nil, nil
	}
	service := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if app := b.app[name.Name]; app != "" {
		service.Spec.Ports[0].AppProtocol = &app
	}
	var slices []*discoveryv1.EndpointSlice
	for _, a := range addrs {
		slices = append(slices, &discoveryv1.EndpointSlice{
			Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(a.Port()))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{a.Addr().String()}}},
		})
	}
	return service, slices
}

// serve makes a Service of a server, which ends with the test.
func (b *bench) serve(name string, handler http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(handler)
	b.t.Cleanup(s.Close)
	b.service(name, conns.AddrOf(s.Listener.Addr()))
	return s
}

func (b *bench) service(name string, addrs ...netip.AddrPort) {
	b.mu.Lock()
	b.services[name] = addrs
	b.mu.Unlock()
	b.proxy.endpoints.Update(types.NamespacedName{Namespace: "n", Name: name})
}

// route replaces the routes of a name, on port 80 for all hosts unless places are given.
func (b *bench) route(name string, rules []model.Rule, places ...model.Place) {
	if places == nil {
		places = []model.Place{{Port: 80, Hosts: []string{""}}}
	}
	origin := model.Origin{Kind: "HTTPRoute", NamespacedName: types.NamespacedName{Namespace: "n", Name: name}}
	b.proxy.SetRoutes(map[model.Origin]*model.Route{origin: {Origin: origin, Places: places, Rules: rules}})
}

// listen opens the ports of listeners and waits for them.
func (b *bench) listen(all ...model.Listener) {
	b.proxy.SetListeners(all)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range all {
		for b.sockets[l.Port] == nil {
			b.opened.Wait()
		}
	}
}

func (b *bench) addr(port uint16) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sockets[port].String()
}

func to(service string) []model.Backend {
	return []model.Backend{{Service: types.NamespacedName{Namespace: "n", Name: service}, Port: 80, Weight: 1}}
}

func rule(path string, a model.Action) model.Rule {
	return model.Rule{Matches: []model.Match{{Path: path}}, Action: a}
}

// get sends a request to port 80 and returns the response, whose body is read to its end.
func (b *bench) do(r *http.Request) *http.Response {
	b.t.Helper()
	r.URL.Scheme, r.URL.Host = "http", b.addr(80)
	r.RequestURI = ""
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (b *bench) get(target string) *http.Response {
	b.t.Helper()
	return b.do(httptest.NewRequest(http.MethodGet, target, nil))
}

func mustCompile(s string) *regexp.Regexp { return regexp.MustCompile(s) }

// certificateFor makes a certificate of a name, and of URIs.
func certificateFor(t testing.TB, name string, uris ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Unix(1<<33, 0)}
	for _, u := range uris {
		uri, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
