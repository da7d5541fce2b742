package http3

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	upstream "github.com/quic-go/quic-go/http3"

	"github.com/barque/barque/internal/connlimit"
)

func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"x"}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// watched is a socket that counts packets of Retry.
type watched struct {
	net.PacketConn
	retries atomic.Int32
}

// WriteTo implements net.PacketConn.
func (w *watched) WriteTo(p []byte, to net.Addr) (int, error) {
	// A long header of version 1 with the type 3: RFC 9000, 17.2.5.
	if len(p) > 5 && p[0]&0xf0 == 0xf0 && bytes.Equal(p[1:5], []byte{0, 0, 0, 1}) {
		w.retries.Add(1)
	}
	return w.PacketConn.WriteTo(p, to)
}

// bench is a server with the bounds of a test.
type bench struct {
	t      testing.TB
	server *Server
	socket *watched
}

func newBench(t testing.TB, handler http.HandlerFunc, change func(*Config)) *bench {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		TLS: &tls.Config{Certificates: []tls.Certificate{certificate(t)}}, Handler: handler,
		Connections: connlimit.New(connlimit.Limits{Total: 100, PerSource: 100, Anonymous: true},
			slog.New(slog.DiscardHandler)),
		MaxHeader: 64 << 10, Streams: 10, Handshake: 10 * time.Second, First: 10 * time.Second, Idle: time.Minute,
	}
	if change != nil {
		change(&config)
	}
	b := &bench{t: t, socket: &watched{PacketConn: socket}}
	if b.server, err = Serve(b.socket, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		b.server.Close(now)
	})
	return b
}

// client returns a client, which keeps a connection.
func (b *bench) client() *upstream.Transport {
	c := &upstream.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "x"}}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (b *bench) get(ctx context.Context, c *upstream.Transport, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+b.server.Addr().String()+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, text+" "+r.Proto+" "+r.URL.Path)
	}
}

// TestRequest: a request with all that a handler needs, by a handshake without Retry.
func TestRequest(t *testing.T) {
	type key struct{}
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || !r.TLS.HandshakeComplete || r.Context().Value(key{}) != "c" {
			http.Error(w, "without", http.StatusInternalServerError)
			return
		}
		says("hello")(w, r)
	}, func(c *Config) {
		c.Context = func(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, "c") }
	})
	if got, err := b.get(t.Context(), b.client(), "/x"); got != "hello HTTP/3.0 /x" {
		t.Errorf("got %q, %v", got, err)
	}
	if n := b.socket.retries.Load(); n != 0 {
		t.Errorf("%d packets of Retry for one client", n)
	}
	if n := b.server.config.Connections.Count(); n != 1 {
		t.Errorf("%d connections are counted, want 1", n)
	}
}

// TestManyStrangers: while many clients are in handshakes, the next ones have to answer a Retry,
// and take no place of theirs.
func TestManyStrangers(t *testing.T) {
	b := newBench(t, says("hello"), nil)
	b.server.strangers.Store(mostStrangers)
	if got, err := b.get(t.Context(), b.client(), "/"); got != "hello HTTP/3.0 /" {
		t.Errorf("got %q, %v", got, err)
	}
	if n := b.socket.retries.Load(); n == 0 {
		t.Error("no packet of Retry")
	}
	if n := b.server.strangers.Load(); n != mostStrangers {
		t.Errorf("%d strangers, want %d", n, mostStrangers)
	}
	if n := b.server.config.Connections.Count(); n != 1 {
		t.Errorf("%d connections are counted, want 1", n)
	}
}

// TestStrangersLeave: a handshake that has ended, well or not, takes no place any more.
func TestStrangersLeave(t *testing.T) {
	b := newBench(t, says("hello"), func(c *Config) { c.TLS.ClientAuth = tls.RequireAnyClientCert })
	if got, err := b.get(t.Context(), b.client(), "/"); err == nil {
		t.Errorf("got %q without a certificate", got)
	}
	for b.server.strangers.Load()+int64(b.server.config.Connections.Count()) != 0 {
		if t.Context().Err() != nil {
			t.Fatalf("%d strangers, %d connections", b.server.strangers.Load(), b.server.config.Connections.Count())
		}
	}
}

// TestTooManyConnections: a further connection of the source with the most gets no request, with
// and without a Retry. The first one stays.
func TestTooManyConnections(t *testing.T) {
	for name, strangers := range map[string]int64{"a handshake at once": 0, "behind a Retry": mostStrangers} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, says("hello"), func(c *Config) {
				c.Connections = connlimit.New(connlimit.Limits{Total: 1, PerSource: 1, Anonymous: true},
					slog.New(slog.DiscardHandler))
			})
			b.server.strangers.Store(strangers)
			first := b.client()
			if got, err := b.get(t.Context(), first, "/"); err != nil {
				t.Fatalf("got %q, %v", got, err)
			}
			if got, err := b.get(t.Context(), b.client(), "/"); err == nil {
				t.Errorf("the second connection: got %q", got)
			}
			if got, err := b.get(t.Context(), first, "/"); err != nil {
				t.Errorf("the first connection: got %q, %v", got, err)
			}
			if n := b.server.config.Connections.Count(); n != 1 {
				t.Errorf("%d connections are counted, want 1", n)
			}
		})
	}
}

func TestRefusedSource(t *testing.T) {
	b := newBench(t, says("hello"), func(c *Config) {
		c.Refuse = func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.1") }
	})
	if got, err := b.get(t.Context(), b.client(), "/"); err == nil {
		t.Errorf("got %q", got)
	}
}

// TestConnectionsWithoutRequestsEnd: a connection without a complete header ends, whatever it has
// begun.
func TestConnectionsWithoutRequestsEnd(t *testing.T) {
	for name, begin := range map[string]func(*quic.Conn) error{
		"nothing": func(*quic.Conn) error { return nil },
		"half a header": func(c *quic.Conn) error {
			s, err := c.OpenStream()
			if err != nil {
				return err
			}
			_, err = s.Write([]byte{1, 40, 0})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, says("hello"), func(c *Config) { c.First = 10 * time.Millisecond })
			c, err := quic.DialAddr(t.Context(), b.server.Addr().String(),
				&tls.Config{InsecureSkipVerify: true, NextProtos: []string{upstream.NextProtoH3}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.CloseWithError(0, "") }()
			_ = begin(c) // the server may have ended it already
			<-c.Context().Done()
		})
	}
}

// TestNoResumption: a client that comes again makes a whole handshake.
func TestNoResumption(t *testing.T) {
	b := newBench(t, says("hello"), nil)
	sessions := tls.NewLRUClientSessionCache(1)
	for range 2 {
		c := b.client()
		c.TLSClientConfig.ClientSessionCache = sessions
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+b.server.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.TLS.DidResume {
			t.Error("a session was resumed")
		}
		_ = c.Close()
	}
}

// TestCloseLetsRequestsEnd: no request is cut while there is time, and no new one is taken.
func TestCloseLetsRequestsEnd(t *testing.T) {
	under, release := make(chan struct{}), make(chan struct{})
	b := newBench(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(under)
			<-release
		}
		says("done")(w, r)
	}, nil)
	c, slow := b.client(), make(chan string, 1)
	go func() {
		got, err := b.get(t.Context(), c, "/slow")
		if err != nil {
			got = err.Error()
		}
		slow <- got
	}()
	<-under
	closed := make(chan struct{})
	go func() {
		b.server.Close(t.Context())
		close(closed)
	}()
	<-b.server.served
	if got, err := b.get(t.Context(), b.client(), "/"); err == nil {
		t.Errorf("a new connection: got %q", got)
	}
	select {
	case <-closed:
		t.Error("closed before the request has ended")
	default:
	}
	close(release)
	if got := <-slow; got != "done HTTP/3.0 /slow" {
		t.Errorf("the request under way: %q", got)
	}
	<-closed
}

// TestCloseCuts: what lasts longer than the time for it is cut.
func TestCloseCuts(t *testing.T) {
	under := make(chan struct{})
	b := newBench(t, func(_ http.ResponseWriter, r *http.Request) {
		close(under)
		<-r.Context().Done()
	}, nil)
	answer := make(chan error, 1)
	go func() {
		_, err := b.get(t.Context(), b.client(), "/")
		answer <- err
	}()
	<-under
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.server.Close(ctx)
	if err := <-answer; err == nil {
		t.Error("the request has an answer")
	}
}

// FuzzPackets: any packets leave the server able to answer a client.
func FuzzPackets(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x41, 0})
	f.Add(bytes.Repeat([]byte{0xff}, 1200))
	b := newBench(f, says("hello"), nil)
	stranger, err := net.Dial("udp", b.server.Addr().String())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { stranger.Close() })
	c := b.client()
	f.Fuzz(func(t *testing.T, packet []byte) {
		_, _ = stranger.Write(packet) // too long a packet is not sent
		if got, err := b.get(t.Context(), c, "/"); got != "hello HTTP/3.0 /" {
			t.Errorf("got %q, %v", got, err)
		}
	})
}
