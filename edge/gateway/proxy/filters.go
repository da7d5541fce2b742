package proxy

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/edge/gateway/model"
)

// quiet drops the lines of net/http about single requests; the access log and metrics have them.
var quiet = log.New(io.Discard, "", 0)

// buffers are shared by all copies of bodies.
var buffers bufferPool

type bufferPool struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

// Put implements httputil.BufferPool.
func (b *bufferPool) Put(p []byte) { b.pool.Put(&p) }

// timed is a response's body with a limit of time.
type timed struct {
	io.ReadCloser
	timers  []*time.Timer
	reading *time.Timer // of one part
	read    time.Duration
}

// Read implements io.Reader.
func (t *timed) Read(p []byte) (int, error) {
	if t.reading != nil {
		t.reading.Reset(t.read)
	}
	return t.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (t *timed) Close() error {
	t.stop()
	return t.ReadCloser.Close()
}

func (t *timed) stop() {
	for _, timer := range t.timers {
		timer.Stop()
	}
}

// apply changes a request as filters say.
func (x *exchange) apply(out *http.Request, f *model.Filters) {
	for _, h := range f.Request.Set {
		if strings.EqualFold(h.Name, "Host") {
			out.Host = h.Value
		}
	}
	change(out.Header, &f.Request)
	if f.Rewrite == nil {
		return
	}
	if f.Rewrite.Hostname != "" {
		out.Host = f.Rewrite.Hostname
	}
	if path, ok := x.path(&f.Rewrite.Path); ok {
		setPath(out.URL, path)
	}
}

// setPath replaces a path, which keeps a query of its own before that of the request.
func setPath(u *url.URL, path string) {
	u.Path, u.RawPath = path, ""
}

// change sets, adds and removes headers.
func change(h http.Header, c *model.Headers) {
	for _, s := range c.Set {
		h.Set(s.Name, s.Value)
	}
	for _, a := range c.Add {
		h.Add(a.Name, a.Value)
	}
	for _, r := range c.Remove {
		h.Del(r)
	}
}

// path is the path of a request after a change; false without one.
func (x *exchange) path(c *model.PathChange) (string, bool) {
	path := x.in.URL.Path
	switch {
	case c.Full != nil:
		return *c.Full, true
	case c.Prefix != nil:
		rest := strings.TrimPrefix(path, x.entry.prefix)
		if x.entry.match.Kind == model.Exact {
			rest = ""
		}
		to := strings.TrimSuffix(*c.Prefix, "/")
		if rest != "" && !strings.HasPrefix(rest, "/") {
			rest = "/" + rest
		}
		if to += rest; to == "" {
			to = "/"
		}
		return to, true
	case c.Groups != nil:
		pattern := x.entry.match.Pattern
		if pattern == nil {
			return *c.Groups, true
		}
		found := pattern.FindStringSubmatchIndex(path)
		if found == nil {
			return path, true
		}
		to := string(pattern.ExpandString(nil, braced(*c.Groups), path, found))
		if !strings.HasPrefix(to, "/") {
			to = "/" + to
		}
		return to, true
	}
	return "", false
}

// braced writes $1 as ${1}: nginx ends the number of a group at the first other character, and
// package regexp does not.
func braced(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '$' && i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' {
			b.WriteString("${" + s[i+1:i+2] + "}")
			i++
			continue
		}
		if s[i] == '$' {
			b.WriteByte('$')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// redirect sends the client elsewhere.
func (a *action) redirect(w http.ResponseWriter, r *http.Request, x *exchange) {
	d := a.Redirect
	if d.URL != "" {
		a.share(w.Header(), x)
		w.Header().Set("Location", d.URL)
		w.WriteHeader(d.Code)
		return
	}
	to := &url.URL{Scheme: d.Scheme, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	scheme := "http"
	if x.secure {
		scheme = "https"
	}
	if given := r.Header.Get("X-Forwarded-Proto"); (given == "http" || given == "https") && a.proxy.trusts(r) {
		scheme = given
	}
	if to.Scheme == "" {
		to.Scheme = scheme
	}
	name := r.Host
	if h, _, err := net.SplitHostPort(r.Host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if d.Hostname != "" {
		name = d.Hostname
	}
	port := x.port // the listener's, as the Gateway API has it for a redirect without a scheme
	switch {
	case d.Port != 0:
		port = d.Port
	case d.Scheme != "":
		port = usual(to.Scheme)
	}
	to.Host = name
	if strings.Contains(name, ":") {
		to.Host = "[" + name + "]"
	}
	if port != usual(to.Scheme) {
		to.Host = net.JoinHostPort(name, strconv.Itoa(int(port)))
	}
	if path, ok := x.path(&d.Path); ok {
		setPath(to, path)
	}
	change(w.Header(), &a.Filters.Response)
	a.share(w.Header(), x)
	w.Header().Set("Location", to.String())
	w.WriteHeader(d.Code)
}

func usual(scheme string) uint16 {
	if scheme == "https" {
		return 443
	}
	return 80
}

// preflight answers a browser's question whether another site may ask, and notes the site.
func (a *action) preflight(w http.ResponseWriter, r *http.Request, x *exchange) bool {
	c, origin := a.CORS, r.Header.Get("Origin")
	if c == nil || origin == "" {
		return false
	}
	ok := slices.ContainsFunc(c.Origins, func(o string) bool { return originMatches(o, origin) })
	if ok {
		x.origin = origin
	}
	asked := r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || asked == "" {
		return false
	}
	if ok {
		h := w.Header()
		a.share(h, x)
		h.Set("Access-Control-Allow-Methods", listed(c.Methods, c.AnyMethod, c.Credentials, asked))
		if names := listed(c.Headers, c.AnyHeader, c.Credentials,
			r.Header.Get("Access-Control-Request-Headers")); names != "" {
			h.Set("Access-Control-Allow-Headers", names)
		}
		h.Set("Access-Control-Max-Age", strconv.Itoa(int(c.MaxAge/time.Second)))
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

// listed are the allowed values: with credentials, browsers take no star.
func listed(names []string, all, credentials bool, asked string) string {
	switch {
	case all && credentials:
		return asked
	case all:
		return "*"
	}
	return strings.Join(names, ", ")
}

// originMatches compares an origin with one that may have a star.
func originMatches(pattern, origin string) bool {
	before, after, star := strings.Cut(pattern, "*")
	if !star {
		return strings.EqualFold(pattern, origin)
	}
	o := strings.ToLower(origin)
	return len(o) >= len(before)+len(after) && strings.HasPrefix(o, strings.ToLower(before)) &&
		strings.HasSuffix(o, strings.ToLower(after))
}

// share lets the site of a request read the response.
func (a *action) share(h http.Header, x *exchange) {
	c := a.CORS
	if c == nil {
		return
	}
	for _, name := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials",
		"Access-Control-Expose-Headers"} {
		h.Del(name)
	}
	if x.origin == "" {
		return
	}
	allowed := x.origin
	if slices.Contains(c.Origins, "*") && !c.Credentials {
		allowed = "*"
	} else {
		h.Add("Vary", "Origin")
	}
	h.Set("Access-Control-Allow-Origin", allowed)
	if c.Credentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if len(c.Expose) > 0 {
		h.Set("Access-Control-Expose-Headers", strings.Join(c.Expose, ", "))
	}
}

const (
	maxMirrors    = 64
	maxMirrored   = 1 << 20 // of a body
	mirrorTimeout = 10 * time.Second
)

// mirror sends copies of a request. Bodies of unknown or great length are not copied, and none
// while many copies are under way: copies must not slow the request down.
func (a *action) mirror(r *http.Request, x *exchange) {
	var body []byte
	for i, to := range a.mirrors {
		m := &a.Mirrors[i]
		if to.Invalid != "" || m.Denominator > 0 && rand.Int32N(m.Denominator) >= m.Numerator {
			continue
		}
		if r.ContentLength < 0 || r.ContentLength > maxMirrored || r.Header.Get("Upgrade") != "" {
			return
		}
		if body == nil && r.ContentLength > 0 {
			body = make([]byte, r.ContentLength)
			n, err := io.ReadFull(r.Body, body)
			r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:n]), r.Body))
			if err != nil {
				return
			}
		}
		select {
		case a.proxy.mirrors <- struct{}{}:
		default:
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), mirrorTimeout)
		copied := r.Clone(ctx)
		copied.RequestURI = ""
		copied.Body = io.NopCloser(bytes.NewReader(body))
		// Ends with its time-out.
		go func() {
			defer func() { cancel(); <-a.proxy.mirrors }()
			a.send(to, copied, x)
		}()
	}
}

// send sends a copy and drops the answer.
func (a *action) send(to *backend, r *http.Request, x *exchange) {
	state := to.pool.State()
	addr, ok := to.pool.Pick(nil)
	if !ok {
		return
	}
	scheme, transport, err := a.proxy.out.to(to, cmp.Or(to.Protocol, state.Protocol), x.entry.shown, a.GRPC)
	if err != nil {
		return
	}
	for _, name := range hopByHop {
		r.Header.Del(name)
	}
	x.forwarded(r)
	x.apply(r, &a.Filters)
	r.URL.Scheme, r.URL.Host = scheme, addr.String()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}
