package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"
	upstream "github.com/quic-go/quic-go/http3"

	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/model"
)

// packetsAt waits until the UDP port of a port is open.
func (b *bench) packetsAt(port uint16) net.PacketConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.packets[port] == nil {
		b.opened.Wait()
	}
	return b.packets[port]
}

// http3 is a client that keeps a connection to port 443, names a server, and shows a certificate if
// there is one.
func (b *bench) http3(server string, certificate *tls.Certificate) *upstream.Transport {
	config := &tls.Config{ServerName: server, InsecureSkipVerify: true}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	c := &upstream.Transport{TLSClientConfig: config, DisableCompression: true,
		Dial: func(ctx context.Context, _ string, config *tls.Config, options *quic.Config) (*quic.Conn, error) {
			return quic.DialAddr(ctx, b.packetsAt(443).LocalAddr().String(), config, options)
		}}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// over sends a request and returns the response with its body.
func over(client http.RoundTripper, r *http.Request) (*http.Response, string, error) {
	r.RequestURI = ""
	resp, err := client.RoundTrip(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// lines is an access log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// webBench serves the host a.example.com and another one by HTTPS. Its backend returns what it has
// got.
func webBench(t *testing.T, config Config) *bench {
	t.Helper()
	b := newBench(t, config)
	b.certs["web"] = certificateFor(t, "web.example.com")
	b.serve("s", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Alt-Svc", `h3=":1"`)
		w.Header().Set("X-Got", strings.Join([]string{r.Proto, r.Method, r.Host, r.URL.Path, string(body),
			r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-For"),
			"[" + strings.Join(r.TransferEncoding, ",") + "]"}, " "))
	})
	b.listen(https("", nil), https("other.example.com", nil))
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})}, securedAt("a.example.com", nil))
	return b
}

// TestHTTP3: requests go the way of those of HTTP/2.
func TestHTTP3(t *testing.T) {
	log := &lines{}
	b := webBench(t, Config{AccessLog: log})
	client := b.http3("a.example.com", nil)
	for _, c := range []struct {
		name, method, url, body string
		change                  func(*http.Request)
		code                    int
		got                     string
	}{
		{"a request", "GET", "https://a.example.com/x", "", nil, 200,
			"HTTP/1.1 GET a.example.com /x  https 127.0.0.1 []"},
		{"a body", "POST", "https://a.example.com/x", "hello", nil, 200,
			"HTTP/1.1 POST a.example.com /x hello https 127.0.0.1 []"},
		{"a body of unknown length", "POST", "https://a.example.com/x", "hello",
			func(r *http.Request) { r.ContentLength = -1 }, 200,
			"HTTP/1.1 POST a.example.com /x hello https 127.0.0.1 [chunked]"},
		{"a body where few have one", "DELETE", "https://a.example.com/x", "hello",
			func(r *http.Request) { r.ContentLength = -1 }, 200,
			"HTTP/1.1 DELETE a.example.com /x hello https 127.0.0.1 [chunked]"},
		{"a hop that is not trusted", "GET", "https://a.example.com/", "",
			func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.9") }, 200,
			"HTTP/1.1 GET a.example.com /  https 127.0.0.1 []"},
		{"no route", "GET", "https://b.example.com/", "", nil, 404, ""},
		{"a host of another listener", "GET", "https://other.example.com/", "", nil, 421, ""},
		{"dots in the path", "GET", "https://a.example.com/x/%2e%2e/y", "", nil, 400, ""},
		{"a long header", "GET", "https://a.example.com/", "",
			func(r *http.Request) { r.Header.Set("X-Long", strings.Repeat("x", maxHeader)) }, 431, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var body io.Reader
			if c.body != "" {
				body = strings.NewReader(c.body)
			}
			r := httptest.NewRequest(c.method, c.url, body)
			if c.body == "" {
				r.Body = nil
			}
			if c.change != nil {
				c.change(r)
			}
			resp, text, err := over(client, r)
			if err != nil {
				t.Fatal(err)
			}
			if got := resp.Header.Get("X-Got"); resp.StatusCode != c.code || got != c.got {
				t.Errorf("got %d %q %s, want %d %q", resp.StatusCode, got, text, c.code, c.got)
			}
			if resp.Proto != "HTTP/3.0" || resp.Header.Get("Alt-Svc") != "" || resp.Header.Get("Connection") != "" {
				t.Errorf("%s, header %v", resp.Proto, resp.Header)
			}
		})
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if text := log.text.String(); !strings.Contains(text, `"path":"/x","protocol":"HTTP/3.0","status":200`) {
		t.Errorf("the access log: %s", text)
	}
}

// TestAltSvc: clients of HTTPS learn of HTTP/3 where it is open and packets of theirs arrive.
func TestAltSvc(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	for _, c := range []struct {
		name   string
		config Config
		change func(*bench)
		want   string
	}{
		{"open", Config{}, nil, `h3=":443"; ma=86400`},
		{"the port is somebody else's", Config{},
			func(b *bench) { b.proxy.SetPacketsTaken(map[uint16]bool{443: true}) }, ""},
		{"a trusted proxy", Config{TrustedHops: own}, nil, ""},
		{"balancers", Config{Balancers: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := webBench(t, c.config)
			b.packetsAt(443)
			if c.change != nil {
				c.change(b)
			}
			for _, h2 := range []bool{false, true} {
				for got := "none"; got != c.want; {
					resp, _, err := over(b.browser("a.example.com", nil, h2),
						httptest.NewRequest(http.MethodGet, "https://a.example.com/", nil))
					if err != nil {
						t.Fatal(err)
					}
					if got = resp.Header.Get("Alt-Svc"); t.Context().Err() != nil {
						t.Fatalf("HTTP/2 %v: got %q, want %q", h2, got, c.want)
					}
				}
			}
		})
	}
}

// TestHTTP3Names: only names of HTTPS have HTTP/3, where the port has other streams, too.
func TestHTTP3Names(t *testing.T) {
	b := newBench(t, Config{})
	b.certs["web"] = certificateFor(t, "web.example.com")
	b.serve("s", says("s"))
	b.listen(https("*.example.com", nil),
		model.Listener{Port: 443, Serve: model.Passthrough, Hostname: "pass.example.com", Isolated: true},
		model.Listener{Port: 443, Serve: model.Terminate, Hostname: "end.example.com", Isolated: true,
			Certificates: secretsOf("web")})
	b.route("r", served(), securedAt("web.example.com", nil))
	for name, want := range map[string]bool{"web.example.com": true, "pass.example.com": false,
		"end.example.com": false, "unknown.example.org": false} {
		_, _, err := over(b.http3(name, nil), httptest.NewRequest(http.MethodGet, "https://"+name+"/", nil))
		if (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHTTP3Clients: a client needs a certificate as with HTTP/2, and a kept connection counts by
// the CAs of now.
func TestHTTP3Clients(t *testing.T) {
	b, own, other := clientBench(t)
	b.cas["ca"] = ca(own)
	b.listen(https("", required("ca")), https("free.example.com", nil))
	b.route("a", served(), securedAt("a.example.com", required("ca")))
	b.route("free", served(), securedAt("free.example.com", nil))
	get := func(c *upstream.Transport, host string) int {
		resp, _, err := over(c, httptest.NewRequest(http.MethodGet, "https://"+host+"/", nil))
		if err != nil {
			return 0
		}
		return resp.StatusCode
	}
	for _, c := range []struct {
		server, host string
		shown        *tls.Certificate
		want         int
	}{
		{"a.example.com", "a.example.com", own, 200}, {"a.example.com", "a.example.com", other, 0},
		{"a.example.com", "a.example.com", nil, 0}, {"free.example.com", "free.example.com", nil, 200},
		{"free.example.com", "a.example.com", own, 421},
	} {
		if got := get(b.http3(c.server, c.shown), c.host); got != c.want {
			t.Errorf("the server name %s, the host %s, own certificate %v: got %d, want %d", c.server, c.host,
				c.shown == own, got, c.want)
		}
	}
	kept := b.http3("a.example.com", own)
	if got := get(kept, "a.example.com"); got != 200 {
		t.Fatalf("got %d", got)
	}
	b.mu.Lock()
	b.cas["ca"] = ca(other)
	b.mu.Unlock()
	if got := get(kept, "a.example.com"); got != 421 {
		t.Errorf("the kept connection: got %d, want 421", got)
	}
}

// TestHTTP3BrokenResponse: a response that a backend does not complete is not complete for the
// client either. Trailers arrive.
func TestHTTP3BrokenResponse(t *testing.T) {
	b := webBench(t, Config{})
	b.serve("broken", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-End")
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		if r.URL.Path == "/broken" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-End", "end")
	})
	b.route("b", []model.Rule{rule("/", model.Action{Backends: to("broken")})}, securedAt("b.example.com", nil))
	client := b.http3("b.example.com", nil)
	if _, text, err := over(client,
		httptest.NewRequest(http.MethodGet, "https://b.example.com/broken", nil)); err == nil {
		t.Errorf("half a response is taken for %q", text)
	}
	resp, text, err := over(client, httptest.NewRequest(http.MethodGet, "https://b.example.com/whole", nil))
	if err != nil || text != "half" || resp.Trailer.Get("X-End") != "end" {
		t.Errorf("got %q with the trailers %v, %v", text, resp, err)
	}
}

// TestHTTP3Balancers: a balancer's connections begin with the PROXY protocol, so it gets none here.
func TestHTTP3Balancers(t *testing.T) {
	b := webBench(t, Config{Balancers: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if resp, _, err := over(b.http3("a.example.com", nil),
		httptest.NewRequest(http.MethodGet, "https://a.example.com/", nil)); err == nil {
		t.Errorf("got %d", resp.StatusCode)
	}
}

// TestHTTP3Retry: a request without a body goes to another endpoint when the first one breaks its
// connection.
func TestHTTP3Retry(t *testing.T) {
	b := webBench(t, Config{})
	breaks := listener(t)
	t.Cleanup(func() { breaks.Close() })
	go func() {
		for {
			c, err := breaks.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	}()
	backend := b.serve("t", says("t"))
	b.service("t", conns.AddrOf(breaks.Addr()), conns.AddrOf(backend.Listener.Addr()))
	b.route("t", []model.Rule{rule("/", model.Action{Backends: to("t")})}, securedAt("t.example.com", nil))
	client := b.http3("t.example.com", nil)
	for range 4 {
		resp, text, err := over(client, httptest.NewRequest(http.MethodGet, "https://t.example.com/", nil))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%v, %s, %v", resp, text, err)
		}
	}
}

// TestHTTP3ComesAndGoes: the UDP port is open while a listener of HTTPS needs it and nobody else
// has it. A port that cannot be opened is said once.
func TestHTTP3ComesAndGoes(t *testing.T) {
	said := make(chan error, 4)
	b := newBench(t, Config{Refused: func(_ uint16, err error) { said <- err }})
	b.certs["web"] = certificateFor(t, "web.example.com")
	b.listen(https("", nil))
	closed := func(step string, socket net.PacketConn) {
		t.Helper()
		for { // a socket that is open waits for a packet
			if _, _, err := socket.ReadFrom(nil); errors.Is(err, net.ErrClosed) {
				return
			} else if t.Context().Err() != nil {
				t.Fatalf("%s: the UDP port is open", step)
			}
		}
	}
	first := b.packetsAt(443)
	b.mu.Lock()
	delete(b.packets, 443)
	b.mu.Unlock()
	b.proxy.SetPacketsTaken(map[uint16]bool{443: true})
	closed("taken", first)
	b.proxy.SetPacketsTaken(nil)
	second := b.packetsAt(443)
	b.mu.Lock()
	delete(b.packets, 443)
	b.refuse = errors.New("in use")
	b.mu.Unlock()
	b.listen(model.Listener{Port: 443, Serve: model.Passthrough})
	closed("no listener of HTTPS", second)
	b.listen(https("", nil))
	if err := <-said; !strings.Contains(err.Error(), "--gateway-http3=false") {
		t.Error(err)
	}
	b.proxy.poke()
	b.mu.Lock()
	b.refuse = nil
	b.mu.Unlock()
	b.proxy.poke()
	b.packetsAt(443)
	if n := len(said); n > 0 {
		t.Errorf("said %d times more", n)
	}
}
