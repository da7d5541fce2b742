package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/model"
)

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func says(what string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", what, r.URL.Path) }
}

func TestPathsAndHosts(t *testing.T) {
	b := newBench(t, Config{})
	for _, name := range []string{"root", "app", "exact", "host", "star"} {
		b.serve(name, says(name))
	}
	b.listen(model.Listener{Port: 80})
	b.route("paths", []model.Rule{
		rule("/", model.Action{Backends: to("root")}), rule("/app", model.Action{Backends: to("app")}),
		{Matches: []model.Match{{Kind: model.Exact, Path: "/app/exact"}}, Action: model.Action{Backends: to("exact")}},
	})
	b.route("host", []model.Rule{rule("/only", model.Action{Backends: to("host")})},
		model.Place{Port: 80, Hosts: []string{"a.example.com"}})
	b.route("star", []model.Rule{rule("/", model.Action{Backends: to("star")})},
		model.Place{Port: 80, Hosts: []string{"*.example.org"}, OneLabel: true})
	for target, want := range map[string]string{
		"http://x/": "root /", "http://x/app": "app /app", "http://x/app/": "app /app/", "http://x/app/b": "app /app/b",
		"http://x/apple":     "root /apple",
		"http://x/app/exact": "exact /app/exact", "http://x/app/exact/": "app /app/exact/",
		"http://A.example.com:80/only": "host /only", "http://a.example.com/other": "root /other",
		"http://b.example.com/only": "root /only",
		"http://a.example.org/":     "star /", "http://a.b.example.org/": "root /", "http://example.org/": "root /",
	} {
		if got := text(t, b.get(target)); got != want {
			t.Errorf("%s: got %q, want %q", target, got, want)
		}
	}
}

func TestRouteGoesAndComes(t *testing.T) {
	b := newBench(t, Config{})
	b.serve("one", says("one"))
	b.listen(model.Listener{Port: 80})
	if code := b.get("http://x/").StatusCode; code != http.StatusNotFound {
		t.Errorf("without a route: %d", code)
	}
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("one")})})
	if got := text(t, b.get("http://x/")); got != "one /" {
		t.Error(got)
	}
	b.proxy.SetRoutes(
		map[model.Origin]*model.Route{
			{Kind: "HTTPRoute", NamespacedName: types.NamespacedName{Namespace: "n", Name: "r"}}: nil})
	if code := b.get("http://x/").StatusCode; code != http.StatusNotFound {
		t.Errorf("after the route has gone: %d", code)
	}
}

func TestIsolatedListenerHidesLessSpecificRoutes(t *testing.T) {
	b := newBench(t, Config{})
	b.serve("all", says("all"))
	b.listen(model.Listener{Port: 80}, model.Listener{Port: 80, Hostname: "a.example.com", Isolated: true})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("all")})})
	if code := b.get("http://a.example.com/").StatusCode; code != http.StatusNotFound {
		t.Errorf("got %d, want 404", code)
	}
	if code := b.get("http://b.example.com/").StatusCode; code != http.StatusOK {
		t.Errorf("got %d, want 200", code)
	}
}

func TestBackendErrors(t *testing.T) {
	b := newBench(t, Config{})
	b.service("empty")
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{
		rule("/missing", model.Action{Backends: to("missing")}), rule("/empty", model.Action{Backends: to("empty")}),
		rule("/none", model.Action{}),
		rule("/invalid", model.Action{Backends: []model.Backend{{Weight: 1, Invalid: "not permitted"}}}),
	})
	for path, want := range map[string]int{"/missing": 500, "/empty": 503, "/none": 500, "/invalid": 500} {
		if code := b.get("http://x" + path).StatusCode; code != want {
			t.Errorf("%s: got %d, want %d", path, code, want)
		}
	}
}

// TestDeadEndpoint: a request whose first endpoint refuses connections goes to another one,
// whatever its method, with its body.
func TestDeadEndpoint(t *testing.T) {
	b := newBench(t, Config{})
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := conns.AddrOf(dead.Addr())
	dead.Close()
	live := b.serve("s", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	b.service("s", gone, conns.AddrOf(live.Listener.Addr()))
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})})
	for range 4 {
		resp := b.do(httptest.NewRequest(http.MethodPost, "http://x/", strings.NewReader("the body")))
		if got := text(t, resp); resp.StatusCode != 200 || got != "the body" {
			t.Errorf("got %d %q", resp.StatusCode, got)
		}
	}
}

// TestRetriesIdempotentOnly: an endpoint that closes the connection after the request gets a POST
// once, and a GET goes on to the other one.
func TestRetriesIdempotentOnly(t *testing.T) {
	b := newBench(t, Config{})
	posts := make(chan struct{}, 16)
	broken := b.serve("s", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts <- struct{}{}
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			c.Close()
		}
	})
	whole := b.serve("whole", says("whole"))
	b.service("s", conns.AddrOf(broken.Listener.Addr()), conns.AddrOf(whole.Listener.Addr()))
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})})
	failed := 0
	for range 4 {
		if code := b.get("http://x/").StatusCode; code != 200 {
			t.Errorf("GET: %d", code)
		}
		if b.do(
			httptest.NewRequest(http.MethodPost, "http://x/",
				strings.NewReader("x"))).StatusCode == http.StatusBadGateway {
			failed++
		}
	}
	if failed == 0 || failed != len(posts) {
		t.Errorf("%d POSTs failed, and the broken endpoint has seen %d", failed, len(posts))
	}
}

func TestForwardedHeaders(t *testing.T) {
	for _, c := range []struct {
		name      string
		trusted   []netip.Prefix
		given     string
		want, is  string
		wantProto string
	}{
		{"of a stranger", nil, "1.2.3.4", "127.0.0.1", "127.0.0.1", "http"},
		{"of a trusted hop", []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, "6.6.6.6, 1.2.3.4",
			"6.6.6.6, 1.2.3.4, 127.0.0.1", "1.2.3.4", "https"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Config{TrustedHops: c.trusted})
			b.serve("s", func(w http.ResponseWriter, r *http.Request) {
				h := r.Header
				fmt.Fprintf(w, "%s|%s|%s|%s|%v", h.Get("X-Forwarded-For"), h.Get("X-Real-Ip"),
					h.Get("X-Forwarded-Proto"), h.Get("X-Forwarded-Host"), h["X_forwarded_for"])
			})
			b.listen(model.Listener{Port: 80})
			b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})})
			r := httptest.NewRequest(http.MethodGet, "http://x/", nil)
			r.Header.Set("X-Forwarded-For", c.given)
			r.Header.Set("X-Forwarded-Proto", "https")
			r.Header["X_forwarded_for"] = []string{"evil"}
			if got, want := text(t, b.do(r)), c.want+"|"+c.is+"|"+c.wantProto+"|x|[]"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestFilters(t *testing.T) {
	b := newBench(t, Config{})
	b.serve("s", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Gone", "1")
		fmt.Fprintf(w, "%s %s %s", r.Host, r.URL.RequestURI(), strings.Join(r.Header["X-Added"], ","))
	})
	full, prefix, groups := "/full", "/new", "/$2"
	regex := model.Match{Kind: model.Regex, Path: "/re(/|$)(.*)", Pattern: mustCompile("^/re(/|$)(.*)")}
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{
		rule("/full",
			model.Action{Backends: to("s"),
				Filters: model.Filters{
					Rewrite: &model.Rewrite{Hostname: "other", Path: model.PathChange{Full: &full}}}}),
		rule("/prefix",
			model.Action{Backends: to("s"),
				Filters: model.Filters{Rewrite: &model.Rewrite{Path: model.PathChange{Prefix: &prefix}}}}),
		{Matches: []model.Match{regex},
			Action: model.Action{Backends: to("s"),
				Filters: model.Filters{Rewrite: &model.Rewrite{Path: model.PathChange{Groups: &groups}}}}},
		rule("/headers", model.Action{Backends: to("s"), Filters: model.Filters{
			Request:  model.Headers{Add: []model.Header{{Name: "X-Added", Value: "2"}}},
			Response: model.Headers{Remove: []string{"X-Gone"}},
		}}),
	})
	for target, want := range map[string]string{
		"http://x/full/a?q=1": "other /full?q=1 ", "http://x/prefix/a%2Fb?q": "x /new/a/b?q ",
		"http://x/prefix": "x /new ", "http://x/re/a/b": "x /a/b ",
		"http://x/re": "x / ",
	} {
		if got := text(t, b.get(target)); got != want {
			t.Errorf("%s: got %q, want %q", target, got, want)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "http://x/headers", nil)
	r.Header.Set("X-Added", "1")
	resp := b.do(r)
	if got := text(t, resp); got != "x /headers 1,2" || resp.Header.Get("X-Gone") != "" {
		t.Errorf("got %q and %q", got, resp.Header.Get("X-Gone"))
	}
}

func TestRedirects(t *testing.T) {
	b := newBench(t, Config{})
	b.listen(model.Listener{Port: 80})
	prefix := "/new"
	b.route("r", []model.Rule{
		rule("/tls", model.Action{Redirect: &model.Redirect{Scheme: "https", Code: 301}}),
		rule("/port", model.Action{Redirect: &model.Redirect{Scheme: "https", Port: 8443, Code: 302}}),
		rule("/host",
			model.Action{Redirect: &model.Redirect{Hostname: "b", Path: model.PathChange{Prefix: &prefix}, Code: 302}}),
	})
	for target, want := range map[string]string{
		"http://a/tls?q=1": "https://a/tls?q=1", "http://a:80/tls": "https://a/tls",
		"http://a/port": "https://a:8443/port", "http://a/host/x": "http://b/new/x",
	} {
		if got := b.get(target).Header.Get("Location"); got != want {
			t.Errorf("%s: got %q, want %q", target, got, want)
		}
	}
}

func TestUpgradeOutlivesTheTimeout(t *testing.T) {
	b := newBench(t, Config{})
	b.serve("s", func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(c, rw)
	})
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s"), Timeouts: model.Timeouts{Request: 1 << 40}})})
	c, err := net.Dial("tcp", b.addr(80))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	fmt.Fprint(c, "ping\n")
	if line, err := r.ReadString('\n'); err != nil || line != "ping\n" {
		t.Error(line, err)
	}
}

func TestTimeout(t *testing.T) {
	b := newBench(t, Config{})
	ended := make(chan struct{})
	b.serve("s", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done(); close(ended) })
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s"), Timeouts: model.Timeouts{Request: 1}})})
	if code := b.get("http://x/").StatusCode; code != http.StatusGatewayTimeout {
		t.Errorf("got %d, want 504", code)
	}
}

func TestTLSByName(t *testing.T) {
	b := newBench(t, Config{})
	b.serve("s", says("s"))
	one, two := certificateFor(t, "one.example.com"), certificateFor(t, "two.example.com")
	b.certs["one"], b.certs["two"] = one, two
	secret := func(name string) []types.NamespacedName { return []types.NamespacedName{{Namespace: "n", Name: name}} }
	b.listen(
		model.Listener{Port: 443, Serve: model.HTTPS, Hostname: "one.example.com", Certificates: secret("one")},
		model.Listener{Port: 443, Serve: model.HTTPS, Hostname: "two.example.com", Certificates: secret("two")},
		model.Listener{Port: 443, Serve: model.HTTPS, Hostname: "three.example.com", SelfSigned: true},
	)
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})},
		model.Place{Port: 443, Serve: model.HTTPS, Hosts: []string{"one.example.com", "two.example.com"}})
	shown := func(name string) (string, error) {
		c, err := tls.Dial("tcp", b.addr(443), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err != nil {
			return "", err
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].DNSNames[0], nil
	}
	for name, want := range map[string]string{"one.example.com": "one.example.com",
		"two.example.com": "two.example.com", "three.example.com": "gateway.invalid"} {
		if got, err := shown(name); err != nil || got != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if _, err := shown("four.example.com"); err == nil {
		t.Error("a name without a listener got a certificate")
	}
	// A connection stays when the certificate changes, and new ones get the new one.
	old, err := tls.Dial("tcp", b.addr(443), &tls.Config{ServerName: "one.example.com", InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	b.mu.Lock()
	b.certs["one"] = certificateFor(t, "renewed.example.com")
	b.mu.Unlock()
	if got, err := shown("one.example.com"); err != nil || got != "renewed.example.com" {
		t.Errorf("after the renewal: %q, %v", got, err)
	}
	answers := bufio.NewReader(old)
	for host, want := range map[string]int{"one.example.com": 200, "two.example.com": 421} {
		fmt.Fprintf(old, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		resp, err := http.ReadResponse(answers, nil)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s: %v %v, want %d", host, resp, err, want)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

func TestPassthrough(t *testing.T) {
	b := newBench(t, Config{})
	backend := httptest.NewTLSServer(says("end"))
	t.Cleanup(backend.Close)
	b.service("s", conns.AddrOf(backend.Listener.Addr()))
	b.listen(model.Listener{Port: 443, Serve: model.Passthrough, Hostname: "*.example.com"})
	origin := model.Origin{Kind: "TLSRoute", NamespacedName: types.NamespacedName{Namespace: "n", Name: "r"}}
	b.proxy.SetRoutes(map[model.Origin]*model.Route{origin: {
		Origin: origin, Stream: to("s"),
		Places: []model.Place{{Port: 443, Serve: model.Passthrough, Hosts: []string{"a.example.com"}}},
	}})
	c, err := tls.Dial("tcp", b.addr(443), &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !c.ConnectionState().PeerCertificates[0].Equal(backend.Certificate()) {
		t.Error("the certificate is not the backend's")
	}
	if _, err := tls.Dial("tcp", b.addr(443),
		&tls.Config{ServerName: "b.example.com", InsecureSkipVerify: true}); err == nil {
		t.Error("a name without a route was connected")
	}
}

func TestAccess(t *testing.T) {
	b := newBench(t, Config{Forbidden: func(netip.Addr) bool { return false }})
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	b.users = map[string]string{"ann": string(hash)}
	b.serve("s", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-User")) })
	auth := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" || r.Header.Get("X-Original-Url") == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-User", "ann")
	}))
	t.Cleanup(auth.Close)
	b.listen(model.Listener{Port: 80})
	loopback, others := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	b.route("r", []model.Rule{
		rule("/allow", model.Action{Backends: to("s"), Access: model.Access{Allow: loopback}}),
		rule("/others", model.Action{Backends: to("s"), Access: model.Access{Allow: others}}),
		rule("/deny", model.Action{Backends: to("s"), Access: model.Access{Deny: loopback}}),
		rule("/basic", model.Action{Backends: to("s"), Access: model.Access{Basic: &model.Basic{Realm: "r"}}}),
		rule("/ask",
			model.Action{Backends: to("s"),
				Access: model.Access{External: &model.External{URL: auth.URL, Headers: []string{"X-User"}}}}),
		rule("/signin",
			model.Action{Backends: to("s"),
				Access: model.Access{External: &model.External{URL: auth.URL, SignIn: "https://login/"}}}),
		rule("/body", model.Action{Backends: to("s"), MaxBody: 3}),
	})
	for _, c := range []struct {
		path, user, password string
		want                 int
	}{
		{"/allow", "", "", 200}, {"/others", "", "", 403}, {"/deny", "", "", 403}, {"/basic", "", "", 401},
		{"/basic", "ann", "wrong", 401},
		{"/basic", "eve", "secret", 401}, {"/basic", "ann", "secret", 200}, {"/ask", "", "", 401},
		{"/ask", "ann", "x", 200}, {"/signin", "", "", 302},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://x"+c.path, nil)
		if c.user != "" {
			r.SetBasicAuth(c.user, c.password)
		}
		resp := b.do(r)
		if resp.StatusCode != c.want {
			t.Errorf("%s as %q: got %d, want %d", c.path, c.user, resp.StatusCode, c.want)
		}
		if c.path == "/ask" && c.want == 200 && text(t, resp) != "ann" {
			t.Error("the header of the authentication did not come through")
		}
	}
	for body, want := range map[string]int{"abc": 200, "abcd": 413} {
		if code := b.do(
			httptest.NewRequest(http.MethodPost, "http://x/body", strings.NewReader(body))).StatusCode; code != want {
			t.Errorf("%q: got %d, want %d", body, code, want)
		}
	}
}

func TestWeightsAndCanary(t *testing.T) {
	b := newBench(t, Config{})
	for _, name := range []string{"a", "none", "canary"} {
		b.serve(name, says(name))
	}
	b.listen(model.Listener{Port: 80})
	none := to("none")
	none[0].Weight = 0
	b.route("r", []model.Rule{rule("/", model.Action{Backends: append(to("a"), none...)})})
	b.route("canary",
		[]model.Rule{
			rule("/",
				model.Action{Backends: to("canary"),
					Canary: &model.Canary{Header: "X-Canary", Cookie: "c", Total: 100}})})
	for _, c := range []struct{ header, cookie, want string }{{"", "", "a /"}, {"always", "", "canary /"},
		{"never", "always", "a /"}, {"", "always", "canary /"}} {
		r := httptest.NewRequest(http.MethodGet, "http://x/", nil)
		if c.header != "" {
			r.Header.Set("X-Canary", c.header)
		}
		if c.cookie != "" {
			r.AddCookie(&http.Cookie{Name: "c", Value: c.cookie})
		}
		if got := text(t, b.do(r)); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestAffinity(t *testing.T) {
	b := newBench(t, Config{})
	one, two := b.serve("s", says("one")), b.serve("t", says("two"))
	b.service("s", conns.AddrOf(one.Listener.Addr()), conns.AddrOf(two.Listener.Addr()))
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s"), Affinity: &model.Affinity{Cookie: "A"}})})
	first := b.get("http://x/")
	want, cookies := text(t, first), first.Cookies()
	if len(cookies) != 1 {
		t.Fatal(cookies)
	}
	for range 5 {
		r := httptest.NewRequest(http.MethodGet, "http://x/", nil)
		r.AddCookie(cookies[0])
		if got := text(t, b.do(r)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCORS(t *testing.T) {
	b := newBench(t, Config{})
	b.serve("s", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "of the backend")
	})
	b.listen(model.Listener{Port: 80})
	b.route("r",
		[]model.Rule{
			rule("/",
				model.Action{Backends: to("s"),
					CORS: &model.CORS{Origins: []string{"https://*.example.com"}, Methods: []string{"GET"},
						Expose: []string{"X-A", "X-B"}, Credentials: true}})})
	for _, c := range []struct {
		method, origin, want string
		code                 int
	}{
		{"OPTIONS", "https://a.example.com", "https://a.example.com", 204}, {"OPTIONS", "https://evil.com", "", 204},
		{"GET", "https://a.example.com", "https://a.example.com", 200}, {"GET", "https://evil.com", "", 200},
	} {
		r := httptest.NewRequest(c.method, "http://x/", nil)
		r.Header.Set("Origin", c.origin)
		r.Header.Set("Access-Control-Request-Method", "GET")
		resp := b.do(r)
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != c.want || resp.StatusCode != c.code {
			t.Errorf("%+v: got %q and %d", c, got, resp.StatusCode)
		}
		// Upstream's conformance suite wants this field in answers to preflights, too.
		if got := resp.Header.Get("Access-Control-Expose-Headers"); (got == "X-A, X-B") != (c.want != "") {
			t.Errorf("%+v: headers to expose %q", c, got)
		}
	}
}

func TestProxyProtocolFromBalancersOnly(t *testing.T) {
	b := newBench(t, Config{Balancers: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	b.serve("s", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-For")) })
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})})
	c, err := net.Dial("tcp", b.addr(80))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, resp); got != "192.0.2.7" {
		t.Error(got)
	}
	bare, err := net.Dial("tcp", b.addr(80))
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	fmt.Fprint(bare, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if answer, _ := io.ReadAll(bare); len(answer) > 0 {
		t.Errorf("a balancer without the header was answered: %q", answer)
	}
}

func TestAccessLog(t *testing.T) {
	var log bytes.Buffer
	done := make(chan struct{}, 1)
	b := newBench(t, Config{AccessLog: writer(func(p []byte) { log.Write(p); done <- struct{}{} })})
	b.serve("s", says("s"))
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})})
	text(t, b.get("http://x/a?b=c"))
	<-done
	var line map[string]any
	if err := json.Unmarshal(log.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if line["host"] != "x" || line["path"] != "/a?b=c" || line["status"] != 200.0 || line["route"] != "HTTPRoute n/r" {
		t.Error(line)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }
