package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/endpoints"
	"github.com/barque/barque/edge/gateway/model"
)

var (
	errUnknownBackend = errors.New("the Service or its port does not exist")
	errNoEndpoints    = errors.New("no endpoint is ready")
	errForbidden      = errors.New("requests for authentication may not go to this address")
)

const (
	// maxTries is how many endpoints a request is sent to, where it may be sent again.
	maxTries       = 3
	connectTimeout = 5 * time.Second
	idlePerBackend = 128
	idleBackend    = 60 * time.Second
	maxResponse    = 256 << 10 // header
)

// backend is a port of a Service with its endpoints.
type backend struct {
	*model.Backend
	pool *endpoints.Pool
}

func (p *Proxy) backend(b *model.Backend) *backend {
	of := &backend{Backend: b}
	if b.Invalid == "" {
		of.pool = p.endpoints.Pool(b)
	}
	return of
}

// backends are the backends of a rule, with the sum of their weights.
type backends struct {
	all   []*backend
	total int64
}

func (p *Proxy) backends(all []model.Backend) (of backends) {
	for i := range all {
		of.all = append(of.all, p.backend(&all[i]))
		of.total += int64(all[i].Weight)
	}
	return of
}

// choose returns a backend by weight; nil where all weights are 0.
func (b *backends) choose() *backend {
	if b.total == 0 {
		return nil
	}
	if len(b.all) == 1 {
		return b.all[0]
	}
	n := rand.Int64N(b.total)
	for _, of := range b.all {
		if n -= int64(of.Weight); n < 0 {
			return of
		}
	}
	return nil
}

// outgoing has the connections to endpoints. A connection belongs to an address and a way to speak,
// so routes that change keep theirs.
type outgoing struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	plain *http.Transport
	h2c   *http.Transport
	// external is for servers that routes name by a URL.
	external *http.Transport
	// authority is Authority of Config, and shows its Certificate.
	authority func(types.NamespacedName) *certs.Authority
	shows     func(types.NamespacedName) *tls.Certificate
	mu        sync.Mutex
	secure    map[tlsKey]*secured
	// streams are the connections by server name, by port.
	streams map[netip.AddrPort]map[net.Conn]bool
	ended   chan struct{} // closed and made anew when a stream ends
}

// OfMachine reports whether an address is one of this machine, or one that means nothing beyond its
// links. What listens there believes that programs of the node ask, as a cloud's metadata service
// at 169.254.169.254 does.
func OfMachine(addr netip.Addr) bool {
	if addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() ||
		addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == addr
	})
}

// guarded dials addresses that are not forbidden. It looks at what a name has resolved to.
func guarded(forbidden func(netip.Addr) bool) func(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if addr := at.Addr().Unmap().WithZone(""); forbidden(addr) {
				return fmt.Errorf("%w: %s", errForbidden, addr)
			}
			return nil
		}}).DialContext
}

func newOutgoing(config *Config) *outgoing {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	plain := dial
	dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if x := exchangeOf(ctx); x != nil && x.action.Timeouts.Connect > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, x.action.Timeouts.Connect)
			defer cancel()
		}
		return plain(ctx, network, address)
	}
	o := &outgoing{
		dial: dial, authority: config.Authority, shows: config.Certificate, secure: map[tlsKey]*secured{},
		streams: map[netip.AddrPort]map[net.Conn]bool{}, ended: make(chan struct{}),
	}
	o.plain, o.h2c, o.external = o.transport(), o.transport(), o.transport()
	o.external.DialContext = guarded(config.Forbidden)
	o.h2c.Protocols = new(http.Protocols)
	o.h2c.Protocols.SetUnencryptedHTTP2(true)
	return o
}

func (o *outgoing) transport() *http.Transport {
	return &http.Transport{
		DialContext: o.dial, MaxIdleConnsPerHost: idlePerBackend, IdleConnTimeout: idleBackend,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxResponse, TLSHandshakeTimeout: connectTimeout, ExpectContinueTimeout: time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
}

// to returns the transport of a backend.
func (o *outgoing) to(
	b *backend, protocol model.Protocol, shown types.NamespacedName, grpc bool,
) (string, *http.Transport, error) {
	switch {
	case b.Verify != nil || protocol == model.TLS || protocol == model.TLSH2:
		transport, err := o.tls(b.Verify, shown, protocol == model.TLSH2 || grpc)
		return "https", transport, err
	case protocol == model.H2C || grpc:
		return "http", o.h2c, nil
	}
	return "http", o.plain, nil
}

func (o *outgoing) close() {
	o.plain.CloseIdleConnections()
	o.h2c.CloseIdleConnections()
	o.external.CloseIdleConnections()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range o.secure {
		of.transport.CloseIdleConnections()
	}
}

// forward is the transport of all requests: it chooses the endpoint, and another one where that is
// safe.
type forward struct{}

// RoundTrip implements http.RoundTripper.
func (forward) RoundTrip(out *http.Request) (*http.Response, error) {
	x := exchangeOf(out.Context())
	b, o := x.backend, x.action.proxy.out
	state := b.pool.State()
	if !state.Known {
		return nil, errUnknownBackend
	}
	scheme, transport, err := o.to(b, cmp.Or(b.Protocol, state.Protocol), x.entry.shown, x.action.GRPC)
	if err != nil {
		return nil, err
	}
	out.URL.Scheme = scheme
	tried := make([]netip.AddrPort, 0, maxTries)
	last := error(errNoEndpoints)
	for len(tried) < maxTries {
		addr, ok := x.endpoint(tried)
		if !ok {
			break
		}
		tried = append(tried, addr)
		x.chosen = addr.String()
		out.URL.Host = x.chosen
		resp, err := x.try(transport, out)
		if err == nil {
			return resp, nil
		}
		if last = err; out.Context().Err() != nil || !x.again(out, err) {
			break
		}
		x.action.proxy.metrics.retries.Inc()
	}
	return nil, last
}

// try sends the request to one endpoint.
func (x *exchange) try(transport *http.Transport, out *http.Request) (*http.Response, error) {
	limits := &x.action.Timeouts
	if limits.Backend <= 0 && limits.Read <= 0 {
		return transport.RoundTrip(out)
	}
	t := &timed{read: limits.Read}
	if limits.Backend > 0 {
		t.timers = append(t.timers, time.AfterFunc(limits.Backend, x.late))
	}
	if limits.Read > 0 {
		t.reading = time.AfterFunc(limits.Read, x.late)
		t.timers = append(t.timers, t.reading)
	}
	resp, err := transport.RoundTrip(out)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		t.stop()
		return resp, err
	}
	t.ReadCloser = resp.Body
	resp.Body = t
	return resp, nil
}

// late ends the request.
func (x *exchange) late() { x.cancel(errTimeout) }

// again reports whether a request may be sent to another endpoint. One that could not be reached
// has seen nothing of it. Else the method must be idempotent, and no body may have been sent.
func (x *exchange) again(out *http.Request, err error) bool {
	if x.body != nil && x.body.touched.Load() {
		return false
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	return x.body == nil && idempotent(out.Method)
}

func idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// endpoint returns the next endpoint to try: the one of the client's cookie, or the next in turn.
func (x *exchange) endpoint(tried []netip.AddrPort) (netip.AddrPort, bool) {
	affinity, pool := x.action.Affinity, x.backend.pool
	if affinity == nil {
		return pool.Pick(tried)
	}
	if cookie, err := x.in.Cookie(affinity.Cookie); err == nil && len(tried) == 0 {
		for _, a := range pool.State().Addrs {
			if cookieOf(a) == cookie.Value {
				return a, true
			}
		}
	}
	addr, ok := pool.Pick(tried)
	if ok {
		x.cookie = &http.Cookie{
			Name: affinity.Cookie, Value: cookieOf(addr), Path: cmp.Or(affinity.Path, "/"), HttpOnly: true,
			MaxAge: int(affinity.MaxAge / time.Second),
			Secure: affinity.Secure || affinity.SameSite == "None", SameSite: sameSite(affinity.SameSite),
		}
	}
	return addr, ok
}

func sameSite(s string) http.SameSite {
	switch s {
	case "Strict":
		return http.SameSiteStrictMode
	case "Lax":
		return http.SameSiteLaxMode
	case "None":
		return http.SameSiteNoneMode
	}
	return 0
}

// cookieOf names an endpoint without its address.
func cookieOf(a netip.AddrPort) string {
	sum := sha256.Sum256([]byte(a.String()))
	return hex.EncodeToString(sum[:16])
}
