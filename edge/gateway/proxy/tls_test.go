package proxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/endpoints"
	"github.com/barque/barque/edge/gateway/model"
)

// echo is a TCP server that sends back what it gets, behind a greeting. It ends with the test.
func echo(t *testing.T, l net.Listener, greeting string) net.Addr {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, greeting)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr()
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (b *bench) stream(name string, serve model.Serve, host string, backends []model.Backend) {
	origin := model.Origin{Kind: "TLSRoute", NamespacedName: types.NamespacedName{Namespace: "n", Name: name}}
	b.proxy.SetRoutes(map[model.Origin]*model.Route{origin: {
		Origin: origin, Stream: backends, Places: []model.Place{{Port: 443, Serve: serve, Hosts: []string{host}}},
	}})
}

// spoken sends a text over TLS to port 443 and returns the answer until its end.
func (b *bench) spoken(name, text string) (string, *tls.ConnectionState, error) {
	c, err := tls.Dial("tcp", b.addr(443), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return "", nil, err
	}
	if err := c.CloseWrite(); err != nil {
		return "", nil, err
	}
	answer, err := io.ReadAll(c)
	state := c.ConnectionState()
	return string(answer), &state, err
}

// TestTerminate: one port has streams whose TLS ends here, others whose TLS the backend ends, and
// HTTPS.
func TestTerminate(t *testing.T) {
	b := newBench(t, Config{})
	b.certs["end"], b.certs["web"] = certificateFor(t, "end.example.com"), certificateFor(t, "web.example.com")
	own := certificateFor(t, "pass.example.com")
	b.service("plain", conns.AddrOf(echo(t, listener(t), "plain ")))
	b.service("pass",
		conns.AddrOf(echo(t, tls.NewListener(listener(t), &tls.Config{Certificates: []tls.Certificate{*own}}),
			"pass ")))
	b.serve("web", says("web"))
	secret := func(name string) []types.NamespacedName { return []types.NamespacedName{{Namespace: "n", Name: name}} }
	b.listen(
		model.Listener{Port: 443, Serve: model.Terminate, Hostname: "*.example.com", Certificates: secret("end"),
			Isolated: true},
		model.Listener{Port: 443, Serve: model.Terminate, Hostname: "alone.example.com", Certificates: secret("end"),
			Isolated: true},
		model.Listener{Port: 443, Serve: model.Passthrough, Hostname: "pass.example.com", Isolated: true},
		model.Listener{Port: 443, Serve: model.HTTPS, Hostname: "web.example.com", Certificates: secret("web"),
			Isolated: true},
	)
	b.stream("end", model.Terminate, "*.example.com", to("plain"))
	b.stream("pass", model.Passthrough, "pass.example.com", to("pass"))
	b.route("web", []model.Rule{rule("/", model.Action{Backends: to("web")})},
		model.Place{Port: 443, Serve: model.HTTPS, Hosts: []string{"web.example.com"}})
	for _, c := range []struct{ name, text, want, certificate string }{
		{"end.example.com", "hello", "plain hello", "end.example.com"},
		{"END.example.com", "hello", "plain hello", "end.example.com"},
		{"a.b.example.com", "hello", "plain hello", "end.example.com"},
		{"pass.example.com", "hello", "pass hello", "pass.example.com"},
		{"alone.example.com", "hello", "", "end.example.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, state, err := b.spoken(c.name, c.text)
			if c.want == "" && err != nil {
				return // the reset may come first
			}
			if err != nil || got != c.want {
				t.Fatalf("got %q, %v; want %q", got, err, c.want)
			}
			if shown := state.PeerCertificates[0].DNSNames[0]; shown != c.certificate {
				t.Errorf("the certificate of %s", shown)
			}
		})
	}
	t.Run("HTTPS beside it", func(t *testing.T) {
		client := &http.Transport{
			TLSClientConfig:   &tls.Config{ServerName: "web.example.com", InsecureSkipVerify: true},
			DisableKeepAlives: true,
		}
		r := httptest.NewRequest(http.MethodGet, "https://"+b.addr(443)+"/x", nil)
		r.Host, r.RequestURI = "web.example.com", ""
		resp, err := client.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := text(t, resp); got != "web /x" {
			t.Error(got)
		}
	})
	if _, _, err := b.spoken("example.org", "hello"); err == nil {
		t.Error("a name without a listener was connected")
	}
}

// TestTheOlderListenerOfANameCounts: whoever may make a Gateway in some namespace takes neither the
// connections of another one's host at the nodes' addresses, nor shows a certificate of its own
// there.
func TestTheOlderListenerOfANameCounts(t *testing.T) {
	const name = "shop.example.com"
	at := func(hour int) time.Time { return time.Date(2026, 11, 30, hour, 0, 0, 0, time.UTC) }
	secret := func(name string) []types.NamespacedName { return []types.NamespacedName{{Namespace: "n", Name: name}} }
	https := func(certificate string, hour int) model.Listener {
		return model.Listener{Port: 443, Serve: model.HTTPS, Hostname: name, Certificates: secret(certificate),
			Created: at(hour)}
	}
	pass := func(hour int) model.Listener {
		return model.Listener{Port: 443, Serve: model.Passthrough, Hostname: name, Created: at(hour)}
	}
	for _, c := range []struct {
		name, want string
		listeners  []model.Listener
	}{
		{"a younger Passthrough", "web", []model.Listener{pass(2), https("web", 1)}},
		{"an older Passthrough", "pass", []model.Listener{pass(1), https("web", 2)}},
		{"a younger certificate", "web", []model.Listener{https("other", 2), https("web", 1)}},
		{"an older certificate", "other", []model.Listener{https("web", 2), https("other", 1)}},
		{"a younger Passthrough beside two", "web", []model.Listener{https("other", 3), https("web", 1), pass(2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Config{})
			b.certs["web"], b.certs["other"] = certificateFor(t, name), certificateFor(t, name)
			own := certificateFor(t, name)
			b.service("pass", conns.AddrOf(echo(t, tls.NewListener(listener(t),
				&tls.Config{Certificates: []tls.Certificate{*own}}), "pass ")))
			b.listen(c.listeners...)
			b.stream("pass", model.Passthrough, name, to("pass"))
			config := &tls.Config{ServerName: name, InsecureSkipVerify: true}
			conn, err := tls.Dial("tcp", b.addr(443), config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			shown := conn.ConnectionState().PeerCertificates[0].Raw
			known := map[string]*tls.Certificate{"web": b.certs["web"], "other": b.certs["other"], "pass": own}
			for who, certificate := range known {
				if bytes.Equal(shown, certificate.Certificate[0]) != (who == c.want) {
					t.Errorf("the certificate of %s: want that of %s", who, c.want)
				}
			}
		})
	}
}

// TestNoListenerOfTheName: where the gateway ends no TLS, it speaks none to a client of another
// name: it closes the connection.
func TestNoListenerOfTheName(t *testing.T) {
	b := newBench(t, Config{})
	b.listen(model.Listener{Port: 443, Serve: model.Passthrough, Hostname: "pass.example.com", Isolated: true})
	conn, err := net.Dial("tcp", b.addr(443))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := tls.Client(conn, &tls.Config{ServerName: "other.example.com"}).Handshake(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the connection", err)
	}
}

// ca returns an authority with one certificate.
func ca(c *tls.Certificate) *certs.Authority {
	of, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		panic(err)
	}
	return &certs.Authority{Certificates: []*x509.Certificate{of}}
}

func verified(service string, v *model.Verify) []model.Backend {
	all := to(service)
	all[0].Verify = v
	return all
}

func configMaps(names ...string) (all []types.NamespacedName) {
	for _, n := range names {
		all = append(all, types.NamespacedName{Namespace: "n", Name: n})
	}
	return all
}

// TestVerifiedBackend: a backend with a policy has the right certificate, or gets no request.
func TestVerifiedBackend(t *testing.T) {
	b := newBench(t, Config{})
	own, other := certificateFor(t, "backend.example.com", "spiffe://x/y"), certificateFor(t, "backend.example.com")
	backend := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.TLS.ServerName) }))
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{*own}}
	backend.StartTLS()
	t.Cleanup(backend.Close)
	b.service("s", conns.AddrOf(backend.Listener.Addr()))
	b.cas["own"], b.cas["other"] = ca(own), ca(other)
	b.listen(model.Listener{Port: 80})
	for _, c := range []struct {
		name   string
		verify model.Verify
		want   int
	}{
		{"right", model.Verify{Hostname: "backend.example.com", Authorities: configMaps("own")}, 200},
		{"one of two CAs", model.Verify{Hostname: "backend.example.com", Authorities: configMaps("other", "own")}, 200},
		{"another name", model.Verify{Hostname: "x.example.com", Authorities: configMaps("own")}, 502},
		{"another CA", model.Verify{Hostname: "backend.example.com", Authorities: configMaps("other")}, 502},
		{"no CA that is there", model.Verify{Hostname: "backend.example.com", Authorities: configMaps("gone")}, 502},
		{"the system's CAs", model.Verify{Hostname: "backend.example.com"}, 502},
		{"invalid", model.Verify{Hostname: "backend.example.com", Authorities: configMaps("own"), Invalid: "options"},
			502},
		{"a URI",
			model.Verify{Hostname: "x.example.com", Names: []string{"spiffe://x/y"}, Authorities: configMaps("own")},
			200},
		{"another URI",
			model.Verify{Hostname: "backend.example.com", Names: []string{"spiffe://x/z"},
				Authorities: configMaps("own")}, 502},
		{"a name with a star",
			model.Verify{Hostname: "x.example.com", Names: []string{"a.org", "*.example.com"},
				Authorities: configMaps("own")}, 200},
		{"another name with a star",
			model.Verify{Hostname: "x.example.com", Names: []string{"*.com"}, Authorities: configMaps("own")}, 502},
		{"a URI of another CA",
			model.Verify{Hostname: "x.example.com", Names: []string{"spiffe://x/y"}, Authorities: configMaps("other")},
			502},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.route("r", []model.Rule{rule("/", model.Action{Backends: verified("s", &c.verify)})})
			resp := b.get("http://x/")
			if resp.StatusCode != c.want {
				t.Fatalf("got %d, want %d", resp.StatusCode, c.want)
			}
			if got := text(t, resp); c.want == 200 && got != c.verify.Hostname {
				t.Errorf("the server name %q, want %q", got, c.verify.Hostname)
			} else if c.want != 200 && !strings.Contains(got, "the certificate of the backend cannot be verified") {
				t.Errorf("the answer %q does not say why", got)
			}
		})
	}
}

// TestNothingIsMisdirectedByAChange: two names of one listener belong together while listeners are
// replaced by the same ones.
func TestNothingIsMisdirectedByAChange(t *testing.T) {
	p := New(Config{}, endpoints.New(nil))
	all := []model.Listener{{Port: 443, Serve: model.HTTPS, Hostname: "*.example.com"}}
	p.SetListeners(all)
	of := p.ports[netip.AddrPortFrom(netip.Addr{}, 443)]
	done := make(chan bool)
	go func() {
		defer close(done)
		for range 20000 {
			p.SetListeners(slices.Clone(all))
		}
	}()
	for {
		if of.misdirected("a.example.com", "b.example.com") {
			t.Error("a request for another name of the listener was refused")
			break
		}
		select {
		case <-done:
			return
		default:
		}
	}
	<-done
}

// TestChangedCA: requests go by the CAs that a ConfigMap has now, without a change of routes.
func TestChangedCA(t *testing.T) {
	b := newBench(t, Config{})
	own, other := certificateFor(t, "backend.example.com"), certificateFor(t, "backend.example.com")
	backend := httptest.NewUnstartedServer(says("s"))
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{*own}}
	backend.StartTLS()
	t.Cleanup(backend.Close)
	b.service("s", conns.AddrOf(backend.Listener.Addr()))
	b.listen(model.Listener{Port: 80})
	b.route("r",
		[]model.Rule{
			rule("/",
				model.Action{
					Backends: verified("s",
						&model.Verify{Hostname: "backend.example.com", Authorities: configMaps("ca")})})})
	for _, step := range []struct {
		name string
		ca   *certs.Authority
		want int
	}{{"right", ca(own), 200}, {"wrong", ca(other), 502}, {"gone", nil, 502}, {"right again", ca(own), 200}} {
		b.mu.Lock()
		b.cas["ca"] = step.ca
		b.mu.Unlock()
		if code := b.get("http://x/").StatusCode; code != step.want {
			t.Errorf("%s: %d, want %d", step.name, code, step.want)
		}
	}
	b.proxy.out.mu.Lock()
	defer b.proxy.out.mu.Unlock()
	if n := len(b.proxy.out.secure); n != 1 {
		t.Errorf("%d transports are kept, want 1", n)
	}
}

// TestVerifiedStream: a stream whose TLS ends here goes to its backend by TLS, if a policy says so.
func TestVerifiedStream(t *testing.T) {
	b := newBench(t, Config{})
	own := certificateFor(t, "backend.example.com")
	b.certs["end"], b.cas["own"], b.cas["other"] = certificateFor(t, "end.example.com"), ca(own),
		ca(certificateFor(t, "backend.example.com"))
	b.service("s",
		conns.AddrOf(echo(t, tls.NewListener(listener(t), &tls.Config{Certificates: []tls.Certificate{*own}}), "")))
	b.listen(
		model.Listener{Port: 443, Serve: model.Terminate, Hostname: "",
			Certificates: []types.NamespacedName{{Namespace: "n", Name: "end"}}})
	b.stream("r", model.Terminate, "",
		verified("s", &model.Verify{Hostname: "backend.example.com", Authorities: configMaps("own")}))
	if got, _, err := b.spoken("end.example.com", "hello"); err != nil || got != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, name := range []string{"other", "gone"} {
		b.stream("r", model.Terminate, "",
			verified("s", &model.Verify{Hostname: "backend.example.com", Authorities: configMaps(name)}))
		if got, _, err := b.spoken("end.example.com", "hello"); err == nil && got != "" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// A client resumes its session with the name that it was made for, on another connection. The
// session is worth nothing for another name, and nothing once the name has no listener.
func TestSessionsAreOfOneName(t *testing.T) {
	b := newBench(t, Config{})
	b.certs["a"], b.certs["b"] = certificateFor(t, "a.example.com"), certificateFor(t, "b.example.com")
	of := func(names ...string) (all []model.Listener) {
		for _, name := range names {
			all = append(all, model.Listener{Port: 443, Serve: model.HTTPS, Hostname: name + ".example.com",
				Certificates: []types.NamespacedName{{Namespace: "n", Name: name}}})
		}
		return all
	}
	b.listen(of("a", "b")...)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		b.proxy.SetListeners(of("a", "b"))
		session := &oneSession{}
		resumed := func(name string) (bool, error) {
			c, err := tls.Dial("tcp", b.addr(443), &tls.Config{ServerName: name, InsecureSkipVerify: true,
				ClientSessionCache: session, MinVersion: version, MaxVersion: version})
			if err != nil {
				return false, err
			}
			defer c.Close()
			// A ticket of TLS 1.3 comes behind the handshake.
			request := "GET / HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n\r\n"
			if _, err := io.WriteString(c, request); err != nil {
				return false, err
			}
			if _, err := io.ReadAll(c); err != nil {
				return false, err
			}
			return c.ConnectionState().DidResume, nil
		}
		for i, step := range []struct {
			name string
			want bool
		}{{"a.example.com", false}, {"a.example.com", true}, {"b.example.com", false}, {"b.example.com", true}} {
			if got, err := resumed(step.name); err != nil || got != step.want {
				t.Errorf("%s, step %d, %s: resumed %v (%v), want %v", tls.VersionName(version), i, step.name, got, err,
					step.want)
			}
		}
		b.proxy.SetListeners(of("a"))
		if got, err := resumed("b.example.com"); err == nil {
			t.Errorf("%s: a name without a listener: resumed %v, and no error", tls.VersionName(version), got)
		}
	}
}

// oneSession keeps the last session, and offers it to all servers.
type oneSession struct{ last *tls.ClientSessionState }

func (o *oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.last, o.last != nil }

func (o *oneSession) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		o.last = s
	}
}
