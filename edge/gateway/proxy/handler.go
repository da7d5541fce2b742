package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/internal/httpserver"
)

// errTimeout ends a request that takes too long.
var errTimeout = errors.New("the request took too long")

// action is a rule with its backends.
type action struct {
	*model.Action
	proxy    *Proxy
	origin   model.Origin
	backends backends
	mirrors  []*backend
	reverse  *httputil.ReverseProxy
}

// compile prepares a route.
func (p *Proxy) compile(r *model.Route) *compiled {
	c := &compiled{Route: r}
	for i := range r.Rules {
		a := &action{Action: &r.Rules[i].Action, proxy: p, origin: r.Origin}
		a.backends = p.backends(a.Backends)
		for j := range a.Mirrors {
			a.mirrors = append(a.mirrors, p.backend(&a.Mirrors[j].Backend))
		}
		a.reverse = &httputil.ReverseProxy{
			Rewrite: rewrite, Transport: forward{}, ModifyResponse: modify, ErrorHandler: a.failed,
			BufferPool: &buffers, ErrorLog: quiet,
		}
		c.actions = append(c.actions, a)
	}
	if len(r.Stream) > 0 {
		c.stream = &action{Action: &model.Action{Backends: r.Stream}, proxy: p, origin: r.Origin,
			backends: p.backends(r.Stream)}
	}
	return c
}

// exchange is the state of one request.
type exchange struct {
	action  *action
	entry   *entry
	backend *backend
	in      *http.Request
	peer    netip.Addr // the other end of the connection
	client  netip.Addr
	secure  bool
	port    uint16
	packets *packets // of the port
	// timer ends the request; an upgrade stops it.
	timer   *time.Timer
	cancel  context.CancelCauseFunc // nil where no time-out ends it
	body    *unread
	cookie  *http.Cookie // to be set
	allowed http.Header  // of the external authentication
	chosen  string       // endpoint, for the log
	origin  string       // of a browser's request from another site
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// lower is a name in the form of the table.
func lower(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// hostOf is the name in a Host header, or false if that is none.
func hostOf(header string) (string, bool) {
	name := header
	if strings.Contains(header, ":") { // the error of a name without a port costs as much as the route
		if h, port, err := net.SplitHostPort(header); err == nil {
			if strings.Trim(port, "0123456789") != "" {
				return "", false
			}
			name = h
		}
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return lower(name), !strings.ContainsAny(name, "/\\@?# \t%")
}

// dots reports whether a path has elements that a backend may resolve to another path than that of
// the rule.
func dots(path string) bool {
	for element := range strings.SplitSeq(path, "/") {
		if element == "." || element == ".." || strings.Contains(element, "\\") || strings.Contains(element, "\x00") {
			return true
		}
	}
	return false
}

// ServeHTTP implements http.Handler.
func (o *port) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	answer := &recorder{ResponseWriter: w, control: http.NewResponseController(w), streams: r.ProtoMajor > 1,
		http3: r.ProtoMajor > 2}
	if !isGRPC(r) { // a stream of messages may pause for long
		defer httpserver.Pace(w, r, bodyGrace)()
	}
	defer answer.end()
	settle(r)
	x := &exchange{in: r, secure: r.TLS != nil, port: o.number, packets: &o.packets}
	// A response that breaks off in the middle ends in a panic, which net/http expects.
	defer func() { o.proxy.done(answer, x, time.Since(began)) }()
	o.serve(answer, r, x)
}

func (o *port) serve(w *recorder, r *http.Request, x *exchange) {
	// HTTP/1.0 knows no chunks, and not every reader knows where its bodies end.
	if r.ProtoMajor == 1 && r.ProtoMinor == 0 {
		w.Header().Set("Connection", "close")
	}
	name, ok := hostOf(r.Host)
	if !ok || r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.Path, "/") && r.RequestURI != "*" ||
		dots(r.URL.Path) {
		w.Header().Set("Connection", "close") // what follows may be meant for somebody else
		http.Error(w, "400 bad request: the host or the path is not valid", http.StatusBadRequest)
		return
	}
	serve := model.HTTP
	if x.secure {
		serve = model.HTTPS
		if o.misdirected(r.TLS.ServerName, name) {
			http.Error(w, "421 misdirected request: another connection is needed for this host",
				http.StatusMisdirectedRequest)
			return
		}
	}
	x.peer = peerOf(r)
	x.client = o.proxy.client(r, x.peer)
	e := o.table.view.Load().find(serve, name, r)
	if e == nil {
		notFound(w, r)
		return
	}
	x.entry, x.action = e, e.action
	if !o.proxy.admits(r, e.clients) {
		w.Header().Set("Connection", "close") // the next handshake asks for the certificate
		http.Error(w, "421 misdirected request: this host needs another connection, with a certificate of the client",
			http.StatusMisdirectedRequest)
		return
	}
	e.action.serve(w, r, x)
}

// misdirected reports whether a connection for one listener has a request for another one.
func (o *port) misdirected(server, name string) bool {
	if server == "" || lower(server) == name {
		return false
	}
	all := o.listeners.Load() // once: a change makes the same listener anew
	return all.find(model.HTTPS, lower(server)) != all.find(model.HTTPS, name)
}

// peerOf is the address at the other end of a request's connection.
func peerOf(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap().WithZone("")
}

// client is the address of the client: the nearest one in X-Forwarded-For that is no trusted hop.
func (p *Proxy) client(r *http.Request, peer netip.Addr) netip.Addr {
	addr := peer
	if !contains(p.config.TrustedHops, addr) {
		return addr
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && contains(p.config.TrustedHops, addr); i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			break
		}
		addr = hop.Unmap()
	}
	return addr
}

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor > 1 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// Codes of gRPC by https://grpc.github.io/grpc/core/md_doc_statuscodes.html.
const (
	grpcDeadline      = 4
	grpcUnimplemented = 12
	grpcUnavailable   = 14
)

func grpcError(w http.ResponseWriter, code int, message string) {
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", fmt.Sprint(code))
	h.Set("Grpc-Message", message)
	w.WriteHeader(http.StatusOK)
}

func notFound(w http.ResponseWriter, r *http.Request) {
	if isGRPC(r) {
		grpcError(w, grpcUnimplemented, "no route matches")
		return
	}
	http.Error(w, "404 no route matches this request", http.StatusNotFound)
}

// serve sends a request on its way.
func (a *action) serve(w *recorder, r *http.Request, x *exchange) {
	if a.preflight(w, r, x) || !a.admit(w, r, x) {
		return
	}
	if a.Redirect != nil {
		a.redirect(w, r, x)
		return
	}
	x.backend = a.backends.choose()
	if x.backend == nil {
		a.answer(w, r, http.StatusInternalServerError, grpcUnavailable, "this route has no backend")
		return
	}
	if reason := x.backend.Invalid; reason != "" {
		a.answer(w, r, http.StatusInternalServerError, grpcUnavailable, reason)
		return
	}
	if !a.limitBody(w, r) {
		return
	}
	a.mirror(r, x)
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if t := &a.Timeouts; t.Request > 0 || t.Backend > 0 || t.Read > 0 { // without them the server's own end does
		ctx, x.cancel = context.WithCancelCause(ctx)
		defer x.cancel(nil)
	}
	if a.Timeouts.Request > 0 {
		x.timer = time.AfterFunc(a.Timeouts.Request, x.late)
		defer x.timer.Stop()
	}
	a.reverse.ServeHTTP(w, r.WithContext(ctx))
}

func (a *action) limitBody(w http.ResponseWriter, r *http.Request) bool {
	if a.MaxBody <= 0 || r.Body == nil {
		return true
	}
	if r.ContentLength > a.MaxBody {
		http.Error(w, fmt.Sprintf("413 the body is larger than %d bytes", a.MaxBody), http.StatusRequestEntityTooLarge)
		return false
	}
	r.Body = http.MaxBytesReader(w, r.Body, a.MaxBody)
	return true
}

// answer is an answer of the gateway itself.
func (a *action) answer(w http.ResponseWriter, r *http.Request, code, grpc int, text string) {
	if a.GRPC || isGRPC(r) {
		grpcError(w, grpc, text)
		return
	}
	http.Error(w, fmt.Sprintf("%d %s", code, text), code)
}

// rewrite makes the request to the backend; see httputil.ReverseProxy.
func rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host, out.Host = "http", "backend", pr.In.Host
	x.forwarded(out)
	for name, values := range x.allowed {
		out.Header[name] = values
	}
	x.apply(out, &x.action.Filters)
	x.apply(out, &x.backend.Filters)
	if out.Body != nil && out.Body != http.NoBody {
		x.body = &unread{ReadCloser: out.Body}
		out.Body = x.body
	}
}

// forwarded names the client and its request. The headers of a client count only if it is
// a trusted hop.
func (x *exchange) forwarded(out *http.Request) {
	in := x.in
	trusted := contains(x.action.proxy.config.TrustedHops, x.peer)
	peer := x.peer.String()
	chain, client := peer, peer
	if x.client != x.peer {
		client = x.client.String()
	}
	if trusted {
		if before := strings.Join(in.Header.Values("X-Forwarded-For"), ", "); before != "" {
			chain = before + ", " + peer
		}
	}
	proto := "http"
	if x.secure {
		proto = "https"
	}
	// A field of the same name with an underscore is another one here, and the same for some
	// backends.
	for name := range out.Header {
		if meant := strings.ToLower(strings.ReplaceAll(name, "_", "-")); meant != strings.ToLower(name) &&
			(strings.HasPrefix(meant, "x-forwarded-") || strings.HasPrefix(meant, "client-cert")) {
			out.Header.Del(name)
			delete(out.Header, name)
		}
	}
	x.nameClient(out, trusted)
	if !trusted {
		out.Header.Del("Forwarded")
	}
	values := [...]string{proto, in.Host, strconv.Itoa(int(x.port)), chain, client} // one allocation for all
	for i, name := range [...]string{"X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-For",
		"X-Real-Ip"} {
		if given := in.Header.Get(name); i < 3 && trusted && given != "" {
			values[i] = given
		}
		out.Header[name] = values[i : i+1 : i+1]
	}
}

// modify changes the response; see httputil.ReverseProxy.
func modify(resp *http.Response) error {
	x := exchangeOf(resp.Request.Context())
	if resp.StatusCode == http.StatusSwitchingProtocols && x.timer != nil {
		x.timer.Stop()
	}
	if x.cookie != nil {
		resp.Header.Add("Set-Cookie", x.cookie.String())
	}
	x.announce(resp.Header)
	change(resp.Header, &x.backend.Filters.Response)
	change(resp.Header, &x.action.Filters.Response)
	x.action.share(resp.Header, x)
	return nil
}

// failed answers when no backend did; see httputil.ReverseProxy.
func (a *action) failed(w http.ResponseWriter, r *http.Request, err error) {
	var large *http.MaxBytesError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &large):
		a.answer(w, r, http.StatusRequestEntityTooLarge, grpcUnavailable,
			fmt.Sprintf("the body is larger than %d bytes", large.Limit))
	case errors.Is(err, httpserver.ErrSlowBody):
		a.answer(w, r, http.StatusRequestTimeout, grpcUnavailable, err.Error())
	case errors.Is(context.Cause(r.Context()), errTimeout):
		a.answer(w, r, http.StatusGatewayTimeout, grpcDeadline, "the backend took too long")
	case errors.Is(err, errUnknownBackend):
		a.answer(w, r, http.StatusInternalServerError, grpcUnavailable, "the backend does not exist")
	case errors.Is(err, errUnverifiable), errors.As(err, &certificate):
		a.answer(w, r, http.StatusBadGateway, grpcUnavailable, "the certificate of the backend cannot be verified")
	case errors.Is(err, errNoEndpoints):
		a.answer(w, r, http.StatusServiceUnavailable, grpcUnavailable, "no endpoint of the backend is ready")
	case r.Context().Err() != nil: // the client has left
		w.WriteHeader(499)
	default:
		a.answer(w, r, http.StatusBadGateway, grpcUnavailable, "the backend does not answer")
	}
}

// unread knows whether a body has been touched. The server closes the body, not a try.
type unread struct {
	io.ReadCloser
	touched atomic.Bool
}

// Read implements io.Reader.
func (u *unread) Read(p []byte) (int, error) {
	u.touched.Store(true)
	return u.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (u *unread) Close() error { return nil }

func contains(all []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
}
