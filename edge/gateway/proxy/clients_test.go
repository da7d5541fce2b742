package proxy

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/model"
)

// required are the requirements for clients of some CAs.
func required(names ...string) *model.Clients {
	return &model.Clients{Authorities: configMaps(names...)}
}

func optional(names ...string) *model.Clients {
	return &model.Clients{Authorities: configMaps(names...), Optional: true}
}

func secretsOf(name string) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: "n", Name: name}}
}

// https is a listener of port 443 with the certificate web.
func https(hostname string, clients *model.Clients) model.Listener {
	return model.Listener{Port: 443, Serve: model.HTTPS, Hostname: hostname, Certificates: secretsOf("web"),
		Isolated: true, Clients: clients}
}

// secured is a place at port 443.
func securedAt(host string, clients *model.Clients) model.Place {
	return model.Place{Port: 443, Serve: model.HTTPS, Hosts: []string{host}, Clients: clients}
}

// browser keeps its connections to port 443, which name a server and show a certificate if there is
// one.
func (b *bench) browser(server string, certificate *tls.Certificate, h2 bool) *http.Transport {
	config := &tls.Config{ServerName: server, InsecureSkipVerify: true}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		}
	}
	t := &http.Transport{TLSClientConfig: config, Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, b.addr(443))
		}}
	t.Protocols.SetHTTP1(!h2)
	t.Protocols.SetHTTP2(h2)
	b.t.Cleanup(t.CloseIdleConnections)
	return t
}

// ask sends a request and returns its status and the answer.
func ask(client *http.Transport, host string, header ...string) (int, string, error) {
	r := httptest.NewRequest(http.MethodGet, "https://"+host+"/", nil)
	r.RequestURI = ""
	for i := 0; i+1 < len(header); i += 2 {
		r.Header[header[i]] = append(r.Header[header[i]], header[i+1])
	}
	resp, err := client.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer), err
}

// clientBench has a backend, and the CAs own and other, whose certificates it returns.
func clientBench(t *testing.T) (b *bench, own, other *tls.Certificate) {
	t.Helper()
	b = newBench(t, Config{})
	own, other = certificateFor(t, "own client"), certificateFor(t, "another client")
	b.certs["web"] = certificateFor(t, "web.example.com")
	b.cas["own"], b.cas["other"] = ca(own), ca(other)
	b.serve("s", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header.Values(clientCert), ","))
	})
	return b, own, other
}

// served are the rules of a route to the backend.
func served() []model.Rule { return []model.Rule{rule("/", model.Action{Backends: to("s")})} }

// TestClientsNeedCertificates: the handshake of a name ends without a certificate of the CAs that
// its listener wants.
func TestClientsNeedCertificates(t *testing.T) {
	b, own, other := clientBench(t)
	b.listen(https("a.example.com", required("own")), https("both.example.com", required("gone", "other", "own")),
		https("gone.example.com", required("gone")), https("may.example.com", optional("own")),
		https("may-gone.example.com", optional("gone")), https("free.example.com", nil))
	for _, name := range []string{"a", "both", "gone"} {
		b.route(name, served(), securedAt(name+".example.com", map[string]*model.Clients{"a": required("own"),
			"both": required("gone", "other", "own"), "gone": required("gone")}[name]))
	}
	b.route("may", served(), securedAt("may.example.com", optional("own")))
	b.route("free", served(), securedAt("free.example.com", nil))
	for _, h2 := range []bool{false, true} {
		for _, c := range []struct {
			name  string
			shown *tls.Certificate
			want  int // 0 is no connection
		}{
			{"a", own, 200}, {"a", other, 0}, {"a", nil, 0},
			{"both", own, 200}, {"both", other, 200}, {"both", nil, 0},
			{"gone", own, 0}, {"gone", nil, 0},
			{"may", own, 200}, {"may", other, 200}, {"may", nil, 200}, {"may-gone", nil, 0},
			{"free", own, 200}, {"free", nil, 200},
		} {
			host := c.name + ".example.com"
			code, answer, err := ask(b.browser(host, c.shown, h2), host)
			if code != c.want || c.want == 0 && err == nil {
				t.Errorf("HTTP/2 %v, %s, a certificate %v, of another CA %v: got %d %s, %v, want %d", h2, host,
					c.shown != nil, c.shown == other, code, answer, err, c.want)
			}
		}
	}
}

// TestRoutesAskAgain: a route whose listener wants a certificate is not reached over a connection
// of another listener, and nobody's requirements are forced on the routes of others.
func TestRoutesAskAgain(t *testing.T) {
	b, own, _ := clientBench(t)
	// Two Gateways have the same listener, and one of them wants certificates. A third has a name
	// below it.
	b.listen(https("", nil), https("", required("own")), https("free.a.example.com", nil))
	b.route("a", served(), securedAt("*.a.example.com", required("own")))
	b.route("narrow", served(), securedAt("free.a.example.com", required("own")))
	b.route("free", served(), securedAt("free.example.com", nil))
	for _, h2 := range []bool{false, true} {
		for _, c := range []struct {
			server, host string
			shown        *tls.Certificate
			want         int
		}{
			{"x.a.example.com", "x.a.example.com", own, 200},
			{"x.a.example.com", "x.a.example.com", nil, 0},
			{"free.example.com", "free.example.com", nil, 200},
			{"free.example.com", "x.a.example.com", nil, 421},
			{"free.example.com", "x.a.example.com", own, 421}, // nobody has asked for it
			{"127.0.0.1", "x.a.example.com", nil, 421},        // no server name
			{"x.a.example.com", "free.example.com", own, 200},
			{"free.a.example.com", "free.a.example.com", own, 200},
			{"free.a.example.com", "free.a.example.com", nil, 0},
			{"unknown.example.com", "unknown.example.com", nil, 404},
		} {
			code, answer, err := ask(b.browser(c.server, c.shown, h2), c.host)
			if code != c.want || c.want == 0 && err == nil {
				t.Errorf("HTTP/2 %v, the server name %q, the host %s, a certificate %v: got %d %s, %v, want %d", h2,
					c.server, c.host, c.shown != nil, code, answer, err, c.want)
			}
		}
	}
}

// TestSharedHost: of two routes of one host, one wants a certificate. The other is reached without.
func TestSharedHost(t *testing.T) {
	b, own, other := clientBench(t)
	b.listen(https("", required("own")), https("", nil))
	b.route("closed", []model.Rule{rule("/closed", model.Action{Backends: to("s")})},
		securedAt("a.example.com", required("own")))
	b.route("open", served(), securedAt("a.example.com", nil))
	for _, c := range []struct {
		path  string
		shown *tls.Certificate
		want  int
	}{{"/", nil, 200}, {"/", other, 200}, {"/closed", nil, 421}, {"/closed", other, 421}, {"/closed", own, 200}} {
		r := httptest.NewRequest(http.MethodGet, "https://a.example.com"+c.path, nil)
		r.RequestURI = ""
		resp, err := b.browser("a.example.com", c.shown, true).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != c.want {
			t.Errorf("%s, own %v, other %v: %d, want %d", c.path, c.shown == own, c.shown == other, resp.StatusCode,
				c.want)
		}
	}
}

// TestRouteOfTwoGateways: a route at one host of two Gateways needs a certificate if one wants it,
// whatever their order.
func TestRouteOfTwoGateways(t *testing.T) {
	b, own, _ := clientBench(t)
	b.listen(https("", required("own")), https("", nil))
	for name, places := range map[string][]model.Place{
		"first": {securedAt("a.example.com", required("own")), securedAt("a.example.com", nil)},
		"last":  {securedAt("a.example.com", nil), securedAt("a.example.com", required("own"))},
	} {
		b.route("r", served(), places...)
		if code, _, err := ask(b.browser("a.example.com", nil, true), "a.example.com"); err == nil {
			t.Errorf("%s: got %d without a certificate", name, code)
		}
		if code, _, err := ask(b.browser("a.example.com", own, true), "a.example.com"); code != 200 {
			t.Errorf("%s: got %d with a certificate, %v", name, code, err)
		}
	}
}

// TestChangedClientCA: a kept connection counts by the CAs of now. It is not cut, and takes no
// request when they do not vouch for its client.
func TestChangedClientCA(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		b, own, other := clientBench(t)
		b.cas["ca"] = ca(own)
		under, release := make(chan struct{}), make(chan struct{})
		b.serve("slow", func(w http.ResponseWriter, _ *http.Request) {
			close(under)
			<-release
			_, _ = io.WriteString(w, "done")
		})
		b.listen(https("", required("ca")))
		b.route("r", append(served(), rule("/slow", model.Action{Backends: to("slow")})),
			securedAt("a.example.com", required("ca")))
		kept := b.browser("a.example.com", own, h2)
		if code, answer, err := ask(kept, "a.example.com"); code != 200 {
			t.Fatalf("%d %s, %v", code, answer, err)
		}
		slow := make(chan string, 1)
		go func() {
			r := httptest.NewRequest(http.MethodGet, "https://a.example.com/slow", nil)
			r.RequestURI = ""
			resp, err := kept.RoundTrip(r)
			if err != nil {
				slow <- err.Error()
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				slow <- err.Error()
				return
			}
			slow <- string(body)
		}()
		<-under
		b.mu.Lock()
		b.cas["ca"] = ca(other)
		b.mu.Unlock()
		if h2 { // the same connection
			if code, _, err := ask(kept, "a.example.com"); code != 421 {
				t.Errorf("the kept connection: got %d, %v, want 421", code, err)
			}
		}
		close(release)
		if got := <-slow; got != "done" {
			t.Errorf("the request under way: %s", got)
		}
		if !h2 {
			if code, _, err := ask(kept, "a.example.com"); code != 421 {
				t.Errorf("the kept connection: got %d, %v, want 421", code, err)
			}
		}
		if code, _, err := ask(kept, "a.example.com"); err == nil {
			t.Errorf("HTTP/2 %v: a new connection of the former CA: got %d", h2, code)
		}
		if code, _, err := ask(b.browser("a.example.com", other, h2), "a.example.com"); code != 200 {
			t.Errorf("HTTP/2 %v: a connection of the new CA: got %d, %v", h2, code, err)
		}
	}
}

// TestBackendsLearnTheClient: the certificate is in the request to the backend, and no client can
// write it itself.
func TestBackendsLearnTheClient(t *testing.T) {
	b, own, other := clientBench(t)
	b.listen(https("", required("own")), https("may.example.com", optional("own")), https("free.example.com", nil))
	b.route("a", served(), securedAt("a.example.com", required("own")))
	b.route("may", served(), securedAt("may.example.com", optional("own")))
	b.route("free", served(), securedAt("free.example.com", nil))
	field := func(c *tls.Certificate) string {
		return ":" + base64.StdEncoding.EncodeToString(c.Certificate[0]) + ":"
	}
	for _, c := range []struct {
		host  string
		shown *tls.Certificate
		want  string
	}{
		{"a.example.com", own, field(own)}, {"may.example.com", other, field(other)}, {"may.example.com", nil, ""},
		{"free.example.com", own, ""},
	} {
		_, got, err := ask(b.browser(c.host, c.shown, true), c.host, "Client-Cert", ":eA==:", "Client_cert", ":eA==:")
		if err != nil || got != c.want {
			t.Errorf("%s: the backend got %q, %v, want %q", c.host, got, err, c.want)
		}
	}
}

// TestShownToBackends: a backend that wants a certificate of its clients gets that of the route's
// Gateway, as it is now.
func TestShownToBackends(t *testing.T) {
	b := newBench(t, Config{})
	own, one, two := certificateFor(t, "backend.example.com"), certificateFor(t, "one"), certificateFor(t, "two")
	b.cas["own"] = ca(own)
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].DNSNames[0])
		}
	}))
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{*own}, ClientAuth: tls.RequestClientCert}
	backend.StartTLS()
	t.Cleanup(backend.Close)
	b.service("s", conns.AddrOf(backend.Listener.Addr()))
	b.listen(model.Listener{Port: 80})
	place := func(host, shown string) model.Place {
		p := model.Place{Port: 80, Hosts: []string{host}}
		if shown != "" {
			p.Shown = secretsOf(shown)[0]
		}
		return p
	}
	// One route, by two Gateways.
	b.route("r",
		[]model.Rule{rule("/", model.Action{
			Backends: verified("s", &model.Verify{Hostname: "backend.example.com", Authorities: configMaps("own")})})},
		place("a.example.com", "shown"), place("b.example.com", ""))
	for _, step := range []struct {
		name  string
		shown *tls.Certificate
		want  string
	}{{"no Secret", nil, ""}, {"one", one, "one"}, {"one again", one, "one"}, {"another", two, "two"}} {
		b.mu.Lock()
		b.certs["shown"] = step.shown
		b.mu.Unlock()
		for host, want := range map[string]string{"a.example.com": step.want, "b.example.com": ""} {
			if got := text(t, b.get("http://"+host+"/")); got != want {
				t.Errorf("%s: %s: the backend has seen %q, want %q", step.name, host, got, want)
			}
		}
	}
	b.proxy.out.mu.Lock()
	defer b.proxy.out.mu.Unlock()
	if n := len(b.proxy.out.secure); n != 2 {
		t.Errorf("%d transports are kept, want 2", n)
	}
}

// TestForgottenTransports: a policy that changes again and again leaves no transports behind.
func TestForgottenTransports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutgoing(&Config{})
		often, err := o.tls(&model.Verify{Hostname: "often.example.com"}, types.NamespacedName{}, false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			time.Sleep(idleBackend / 2)
			of := &model.Verify{Hostname: fmt.Sprintf("%d.example.com", i)}
			if _, err := o.tls(of, types.NamespacedName{}, false); err != nil {
				t.Fatal(err)
			}
			again, err := o.tls(&model.Verify{Hostname: "often.example.com"}, types.NamespacedName{}, false)
			if err != nil || again != often {
				t.Fatalf("a transport that is in use was made anew: %v", err)
			}
		}
		if n := len(o.secure); n > 4 {
			t.Errorf("%d transports are kept", n)
		}
	})
}

// TestShownByStreams: a stream whose TLS ends here shows the certificate, too.
func TestShownByStreams(t *testing.T) {
	b := newBench(t, Config{})
	own, client := certificateFor(t, "backend.example.com"), certificateFor(t, "client")
	b.certs["end"], b.certs["shown"], b.cas["own"] = certificateFor(t, "end.example.com"), client, ca(own)
	b.service("s", conns.AddrOf(echo(t, tls.NewListener(listener(t), &tls.Config{Certificates: []tls.Certificate{*own},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: certs.Pool([]*certs.Authority{ca(client)})}), "")))
	b.listen(model.Listener{Port: 443, Serve: model.Terminate, Certificates: secretsOf("end")})
	for shown, want := range map[string]string{"shown": "hello", "": ""} {
		place := model.Place{Port: 443, Serve: model.Terminate, Hosts: []string{""}}
		if shown != "" {
			place.Shown = secretsOf(shown)[0]
		}
		origin := model.Origin{Kind: "TLSRoute", NamespacedName: types.NamespacedName{Namespace: "n", Name: "r"}}
		b.proxy.SetRoutes(map[model.Origin]*model.Route{origin: {Origin: origin, Places: []model.Place{place},
			Stream: verified("s", &model.Verify{Hostname: "backend.example.com", Authorities: configMaps("own")})}})
		if got, _, err := b.spoken("end.example.com", "hello"); got != want || want != "" && err != nil {
			t.Errorf("shown %q: got %q, %v, want %q", shown, got, err, want)
		}
	}
}
