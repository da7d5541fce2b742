package clustertest

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/barque/barque/internal/await"
)

const (
	visitorCount = 64
	socketCount  = 8
	// visitorPause is between two requests of a client. Without it the clients would take the
	// machine's cores from the cluster, whose elections and probes would fail for that.
	visitorPause = 200 * time.Millisecond
	socketPause  = time.Second
)

// visit sends one request after the other. The answer must be a backend's, to this request.
type visit interface {
	ask(ctx context.Context, path string) error
}

// visitors are the clients of a gateway, and what has failed of them.
type visitors struct {
	began          time.Time
	sent, messages atomic.Int64
	stop           context.CancelFunc
	running        sync.WaitGroup

	mu       sync.Mutex
	now      string // what is going on
	since    time.Time
	failures []visitFailure
	of       map[string]int64 // requests by the kind of client
}

// visitFailure is a request that has failed, or a WebSocket that has broken.
type visitFailure struct {
	kind, what string
	sent, at   time.Time
	during     string
	err        error
}

const (
	requestFailed = "request"
	socketFailed  = "WebSocket"
)

// startVisitors starts the clients: a quarter keeps connections of HTTP/1.1, a quarter those of
// HTTP/2, and half of them make a new one for each request.
func (s *Space) startVisitors(certificates *webCertificates, addresses []string) *visitors {
	ctx, stop := context.WithCancel(context.Background())
	f := &visitors{began: time.Now(), stop: stop, now: "nothing yet", since: time.Now(), of: map[string]int64{}}
	for n := range visitorCount {
		to := certificates.client(addresses[n/4%len(addresses)], webHost)
		kind, v := "a new connection each time", visit(&newEach{to})
		switch n % 4 {
		case 0:
			kind, v = "a kept connection of HTTP/1.1", &kept{visitor: to}
		case 1:
			kind, v = "a kept connection of HTTP/2", newMultiplexed(to)
		}
		f.running.Go(func() { f.visit(ctx, n, kind+" to "+to.address, v) })
	}
	for n := range socketCount {
		to := certificates.client(addresses[n%len(addresses)], webHost)
		f.running.Go(func() { f.socket(ctx, n, to) })
	}
	s.Cleanup(func() {
		f.end()
		f.report(s)
	})
	return f
}

// visit sends requests until ctx ends.
func (f *visitors) visit(ctx context.Context, client int, kind string, v visit) {
	tick := time.NewTicker(visitorPause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		path, sent := fmt.Sprintf("/client-%d/%d", client, n), time.Now()
		err := v.ask(ctx, path)
		if ctx.Err() != nil {
			return // broken off by the end
		}
		f.sent.Add(1)
		f.mu.Lock()
		f.of[kind]++
		f.mu.Unlock()
		if err != nil {
			f.fail(requestFailed, path+" on "+kind, sent, err)
		}
	}
}

// socket sends messages on a WebSocket until ctx ends, and makes a new one where one has broken.
func (f *visitors) socket(ctx context.Context, client int, to visitor) {
	tick := time.NewTicker(socketPause)
	defer tick.Stop()
	var conn *websocket.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sent := time.Now()
		err := func() (err error) {
			if conn == nil {
				if conn, err = to.socket(ctx); err != nil {
					return fmt.Errorf("open it: %w", err)
				}
			}
			return exchange(conn, fmt.Sprintf("message %d of socket %d", n, client))
		}()
		if ctx.Err() != nil {
			return
		}
		f.messages.Add(1)
		if err != nil {
			f.fail(socketFailed, fmt.Sprintf("message %d of socket %d to %s", n, client, to.address), sent, err)
			if conn != nil {
				_ = conn.Close()
			}
			conn = nil
		}
	}
}

func exchange(conn *websocket.Conn, text string) error {
	limit := time.Now().Add(await.Hang)
	if err := conn.SetWriteDeadline(limit); err != nil {
		return err
	}
	if err := conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(limit); err != nil {
		return err
	}
	_, got, err := conn.ReadMessage()
	if err == nil && string(got) != text {
		err = fmt.Errorf("%q came back as %q", text, got)
	}
	return err
}

// during names what is going on from now on.
func (f *visitors) during(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, f.since = what, time.Now()
}

// also adds to what is going on.
func (f *visitors) also(detail string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now += ": " + detail
}

func (f *visitors) fail(kind, what string, sent time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, visitFailure{kind, what, sent, time.Now(),
		fmt.Sprintf("%s, for %v", f.now, time.Since(f.since).Round(time.Millisecond)), err})
}

func (f *visitors) failed(kind string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.failures {
		if one.kind == kind {
			n++
		}
	}
	return n
}

// counts are the requests by the kind of client.
func (f *visitors) counts() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(f.of)) {
		all = append(all, fmt.Sprintf("%s: %d", kind, f.of[kind]))
	}
	return strings.Join(all, ", ")
}

// end ends the clients.
func (f *visitors) end() {
	f.stop()
	f.running.Wait()
}

// report fails the test for what has failed.
func (f *visitors) report(t testing.TB) {
	const shown = 40
	for i, one := range f.failures {
		if i == shown {
			t.Errorf("and %d others", len(f.failures)-shown)
			return
		}
		t.Errorf("%s: the %s %s failed after %v, during %q: %v", one.sent.Format("15:04:05.000"), one.kind, one.what,
			one.at.Sub(one.sent).Round(time.Millisecond), one.during, one.err)
	}
}

// visitor is a client of one address.
type visitor struct {
	address, host string
	tls           *tls.Config
}

// dial connects, for one protocol of ALPN.
func (v *visitor) dial(ctx context.Context, protocol string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, await.Hang)
	defer cancel()
	config := v.tls.Clone()
	config.NextProtos = []string{protocol}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", v.address)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

func (v *visitor) socket(ctx context.Context) (*websocket.Conn, error) {
	dialer := websocket.Dialer{
		HandshakeTimeout: await.Hang,
		NetDialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return v.dial(ctx, "http/1.1")
		},
	}
	conn, response, err := dialer.DialContext(ctx, "wss://"+v.host+"/echo", nil)
	if err != nil && response != nil {
		err = fmt.Errorf("%w: %s", err, response.Status)
	}
	return conn, err
}

// kept keeps a connection of HTTP/1.1 as long as the gateway does. net/http would hide failures: it
// sends a request again on a new connection when a kept one is closed.
type kept struct {
	visitor
	conn   *tls.Conn
	reader *bufio.Reader
}

func (k *kept) ask(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil && k.conn != nil {
			_ = k.conn.Close()
			k.conn = nil
		}
	}()
	if k.conn == nil {
		if k.conn, err = k.dial(ctx, "http/1.1"); err != nil {
			return err
		}
		k.reader = bufio.NewReader(k.conn)
	}
	conn := k.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(await.Hang)); err != nil {
		return err
	}
	response, err := roundTrip(conn, k.reader, k.host, path, false)
	if err == nil && response.Close { // it says so, and the next request gets a new one
		_ = conn.Close()
		k.conn = nil
	}
	return err
}

// newEach makes a new connection for each request.
type newEach struct{ visitor }

func (n *newEach) ask(ctx context.Context, path string) error {
	conn, err := n.dial(ctx, "http/1.1")
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(await.Hang)); err != nil {
		return err
	}
	_, err = roundTrip(conn, bufio.NewReader(conn), n.host, path, true)
	return err
}

// roundTrip sends a request of HTTP/1.1 once, and checks the answer.
func roundTrip(conn net.Conn, reader *bufio.Reader, host, path string, last bool) (*http.Response, error) {
	request, err := http.NewRequest(http.MethodGet, "https://"+host+path, nil)
	if err != nil {
		return nil, err
	}
	request.Close = last
	if err := request.Write(conn); err != nil {
		return nil, fmt.Errorf("write the request: %w", err)
	}
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	return response, checkAnswer(response, path)
}

// multiplexed keeps a connection of HTTP/2.
type multiplexed struct {
	visitor
	transport *http.Transport
}

func newMultiplexed(to visitor) *multiplexed {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	return &multiplexed{to, &http.Transport{
		Protocols: protocols,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return to.dial(ctx, "h2")
		},
	}}
}

func (m *multiplexed) ask(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, await.Hang)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.host+path, nil)
	if err != nil {
		return err
	}
	response, err := m.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	return checkAnswer(response, path)
}

// checkAnswer reads the answer of a pod, which has the path of the request in it.
func checkAnswer(response *http.Response, path string) error {
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	text := string(body)
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(text, "Hello from web-") ||
		!strings.HasSuffix(text, "path: "+path+"\n") {
		return fmt.Errorf("%s answers %s: %s", response.Proto, response.Status, text)
	}
	return nil
}

// webCertificates are those of one CA after the other, for all hosts of the test.
type webCertificates struct {
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	roots  *x509.CertPool
	serial int64 // of the newest one
}

func newWebCertificates(t testing.TB) *webCertificates {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of the test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	w := &webCertificates{key: key, roots: x509.NewCertPool(), serial: 1}
	if w.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	w.roots.AddCert(w.ca)
	return w
}

// next makes another certificate, with a key of its own.
func (w *webCertificates) next(t testing.TB) (chain, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(w.serial), Subject: pkix.Name{CommonName: webHost},
		DNSNames:  []string{"*.example.com", "*.routes.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, w.ca, own.Public(), w.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// client is one of a host at an address. It trusts the CA alone.
func (w *webCertificates) client(address, host string) visitor {
	return visitor{address, host, &tls.Config{RootCAs: w.roots, ServerName: host}}
}

// shown is the condition that an address shows a certificate to new clients.
func (w *webCertificates) shown(address, host string, serial int64) func(context.Context) error {
	return func(ctx context.Context) error {
		v := w.client(address, host)
		conn, err := v.dial(ctx, "http/1.1")
		if err != nil {
			return err
		}
		defer conn.Close()
		if got := conn.ConnectionState().PeerCertificates[0].SerialNumber; got.Int64() != serial {
			return fmt.Errorf("it shows number %v, and the newest is number %d", got, serial)
		}
		return nil
	}
}

// startEcho serves WebSockets that send back what they get, on this machine: a backend that stays,
// whatever goes on in the cluster. It returns the port.
func (s *Space) startEcho() int {
	s.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(s.bridgeAddress(), "0"))
	if err != nil {
		s.Fatal(err)
	}
	upgrader := websocket.Upgrader{HandshakeTimeout: await.Hang}
	server := &http.Server{
		ReadHeaderTimeout: await.Hang,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := upgrader.Upgrade(w, r, nil)
			if err != nil {
				return // it has answered
			}
			defer conn.Close()
			for {
				kind, message, err := conn.ReadMessage()
				if err != nil {
					return // the client has left
				}
				if err := conn.WriteMessage(kind, message); err != nil {
					return
				}
			}
		}),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // ends with Close below
	s.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// Each kind of client takes a backend's answer to its own request, and nothing else: no other
// status, no answer to another request, and no connection that ends.
func TestVisitorsTellFailures(t *testing.T) {
	certificates := newWebCertificates(t)
	chain, key := certificates.next(t)
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/other":
			fmt.Fprint(w, "Hello from web-1\npath: /another\n")
		case "/refused":
			http.Error(w, "Hello from web-1\npath: /refused", http.StatusBadGateway)
		case "/broken":
			panic(http.ErrAbortHandler)
		default:
			fmt.Fprintf(w, "Hello from web-1\npath: %s\n", r.URL.Path)
		}
	}))
	server.EnableHTTP2, server.TLS = true, &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	to := certificates.client(server.Listener.Addr().String(), webHost)
	for name, v := range map[string]visit{
		"kept": &kept{visitor: to}, "new": &newEach{to}, "multiplexed": newMultiplexed(to),
	} {
		for _, path := range []string{"/right", "/other", "/refused", "/broken", "/right"} {
			if err := v.ask(t.Context(), path); (err == nil) != (path == "/right") {
				t.Errorf("%s, %s: %v", name, path, err)
			}
		}
	}
	if err := certificates.shown(to.address, webHost, certificates.serial+1)(t.Context()); err == nil {
		t.Error("an old certificate is taken for the newest")
	}
}
