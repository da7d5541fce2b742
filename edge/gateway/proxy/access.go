package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/edge/gateway/htpasswd"
	"github.com/barque/barque/edge/gateway/model"
)

// admit checks the limits for clients, and answers those that may not pass.
func (a *action) admit(w http.ResponseWriter, r *http.Request, x *exchange) bool {
	access := &a.Access
	if len(access.Allow) > 0 && !contains(access.Allow, x.client) || contains(access.Deny, x.client) {
		http.Error(w, "403 this client may not use the route", http.StatusForbidden)
		return false
	}
	if access.Basic != nil && !a.knows(access.Basic, r) {
		w.Header().Set("WWW-Authenticate", "Basic realm="+quoted(access.Basic.Realm))
		http.Error(w, "401 a name and a password are needed", http.StatusUnauthorized)
		return false
	}
	return access.External == nil || a.ask(access.External, w, r, x)
}

func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\r", "", "\n", "").Replace(s) + `"`
}

// knows checks a name and a password.
func (a *action) knows(b *model.Basic, r *http.Request) bool {
	name, password, ok := r.BasicAuth()
	if !ok {
		return false
	}
	hash, ok := a.proxy.config.Users(b.Secret, b.Map)[name]
	return ok && htpasswd.Matches(hash, password)
}

// authTimeout limits the answer of an external server, and maxAuth what is passed on of it.
const (
	authTimeout = 10 * time.Second
	maxAuth     = 64 << 10
)

// ask lets an external server decide. Its refusal goes to the client.
func (a *action) ask(e *model.External, w http.ResponseWriter, r *http.Request, x *exchange) bool {
	ctx, cancel := context.WithTimeout(r.Context(), authTimeout)
	defer cancel()
	method := e.Method
	if method == "" {
		method = http.MethodGet
	}
	q, err := http.NewRequestWithContext(ctx, method, e.URL, nil)
	if err != nil {
		http.Error(w, "500 the address of the authentication is not valid", http.StatusInternalServerError)
		return false
	}
	q.Header = r.Header.Clone()
	for _, name := range append([]string{"Content-Length", "Content-Type"}, hopByHop...) {
		q.Header.Del(name)
	}
	scheme := "http"
	if x.secure {
		scheme = "https"
	}
	original := scheme + "://" + r.Host + r.URL.RequestURI()
	x.forwarded(q)
	q.Header.Set("X-Original-Url", original)
	q.Header.Set("X-Original-Method", r.Method)
	q.Header.Set("X-Auth-Request-Redirect", r.URL.RequestURI())
	resp, err := a.proxy.out.external.RoundTrip(q)
	if errors.Is(err, errForbidden) {
		http.Error(w, "500 the address of the authentication is one of the node itself, which is not allowed",
			http.StatusInternalServerError)
		return false
	}
	if err != nil {
		http.Error(w, "500 the authentication does not answer", http.StatusInternalServerError)
		return false
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode/100 == 2:
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAuth))
		x.allowed = http.Header{}
		for _, name := range e.Headers {
			if values := resp.Header.Values(name); len(values) > 0 {
				x.allowed[http.CanonicalHeaderKey(name)] = values
			}
		}
		return true
	case resp.StatusCode == http.StatusUnauthorized && e.SignIn != "":
		to, err := url.Parse(e.SignIn)
		if err != nil {
			break
		}
		query := to.Query()
		if !query.Has("rd") {
			query.Set("rd", original)
			to.RawQuery = query.Encode()
		}
		w.Header().Set("Location", to.String())
		w.WriteHeader(http.StatusFound)
		return false
	}
	for _, name := range []string{"Www-Authenticate", "Content-Type", "Set-Cookie", "Location"} {
		for _, value := range resp.Header.Values(name) {
			w.Header().Add(name, value)
		}
	}
	code := resp.StatusCode
	if code < 400 {
		code = http.StatusForbidden
	}
	w.WriteHeader(code)
	_, _ = io.Copy(w, io.LimitReader(resp.Body, maxAuth))
	return false
}

// trusts reports whether the peer of a request is a trusted hop.
func (p *Proxy) trusts(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && contains(p.config.TrustedHops, peer.Addr().Unmap().WithZone(""))
}

// recorder knows the answer.
type recorder struct {
	http.ResponseWriter
	control *http.ResponseController
	streams bool // HTTP/2 or HTTP/3
	http3   bool
	code    int
	bytes   int64
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 || r.code/100 == 1 {
		r.code = code
	}
	if r.http3 {
		r.Header().Del("Connection") // no field of HTTP/3, and quic-go would send it
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	defer r.hurry()()
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := r.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.New("this connection cannot be upgraded")
	}
	return h.Hijack()
}

// hurry bounds a write until the returned function is called. With HTTP/1 the connection has that
// bound. With streams a client may take what the connection has, and leave one without room.
func (r *recorder) hurry() func() {
	if !r.streams {
		return func() {}
	}
	late := time.AfterFunc(writePatience, func() { _ = r.control.SetWriteDeadline(time.Unix(1, 0)) })
	return func() { late.Stop() }
}

// end bounds the last write of a stream, which the server makes when the handler has returned.
func (r *recorder) end() {
	if r.streams {
		_ = r.control.SetWriteDeadline(time.Now().Add(writePatience)) // a stream that is gone needs none
	}
}

// Flush implements http.Flusher.
func (r *recorder) Flush() {
	defer r.hurry()()
	_ = http.NewResponseController(r.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// metrics of the data plane.
type metrics struct {
	requests *prometheus.CounterVec
	// classes are the counters by the first digit of a status; the first one is for others.
	classes [len(classes)]prometheus.Counter
	seconds prometheus.Histogram
	retries prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "barque_gateway_requests_total",
			Help: "Requests that the gateway of this node has answered, by the class of their status.",
		}, []string{"code"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "barque_gateway_request_duration_seconds",
			Help:    "Time from a request's header to the end of its response.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "barque_gateway_retries_total",
			Help: "Requests that were sent to another endpoint, because one did not answer.",
		}),
	}
	for i, class := range classes {
		m.classes[i] = m.requests.WithLabelValues(class)
	}
	return m
}

// Collectors returns the metrics of the proxy.
func (p *Proxy) Collectors() []prometheus.Collector {
	return []prometheus.Collector{p.metrics.requests, p.metrics.seconds, p.metrics.retries}
}

var classes = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"}

// done counts and logs a request.
func (p *Proxy) done(w *recorder, x *exchange, took time.Duration) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	class := w.code / 100
	if class >= len(classes) {
		class = 0
	}
	p.metrics.classes[class].Inc()
	p.metrics.seconds.Observe(took.Seconds())
	if p.access == nil {
		return
	}
	r, route := x.in, ""
	if x.action != nil {
		route = x.action.origin.Kind + " " + x.action.origin.String()
	}
	p.access.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("client", x.client.String()), slog.String("method", r.Method), slog.String("host", r.Host),
		slog.String("path", r.URL.RequestURI()),
		slog.String("protocol", r.Proto), slog.Int("status", w.code), slog.Int64("bytes", w.bytes),
		slog.Float64("seconds", took.Seconds()),
		slog.String("route", route), slog.String("endpoint", x.chosen), slog.Bool("tls", x.secure))
}
