package httpserver

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/heapcost"
)

// listening serves at a port of loopback until the test ends.
func listening(t *testing.T, c Config) (*Server, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// nobody is helped by waiting
	c.Listener, c.Logger, c.HeaderTimeout = listener, slog.New(slog.DiscardHandler), await.Hang
	if c.Handler == nil {
		c.Handler = http.NotFoundHandler()
	}
	s := New(c)
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return s, listener.Addr().String()
}

// TestTheMemoryOfStrangers: a client that says nothing, or slowly, costs little. Health ports serve
// in clear, all others by TLS.
func TestTheMemoryOfStrangers(t *testing.T) {
	const clients = 400
	cert := certificate(t)
	for name, c := range map[string]struct {
		tls    bool
		send   string
		begins bool // a request, whose header is not held any more
	}{
		"silent":                {},
		"silent, by TLS":        {tls: true},
		"a part of a header":    {send: "GET / HTTP/1.1\r\nHost: x\r\nX-Long: "},
		"a part of a handshake": {tls: true, send: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		"a part of a body":      {send: "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx", begins: true},
	} {
		t.Run(name, func(t *testing.T) {
			var begun atomic.Int64
			config := Config{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				begun.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
			})}
			if c.tls {
				config.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
			}
			s, at := listening(t, config)
			cost := heapcost.Of(func() {
				heapcost.Dial(t, at, clients, heapcost.Sends([]byte(c.send)))
				await.True(t, "the server has what they have sent", func() bool {
					return s.Strangers() == clients &&
						(c.begins && begun.Load() == clients || !c.begins && s.Held() == int64(clients*len(c.send)))
				})
			})
			if each := cost / clients; each > heapcost.MostEach {
				t.Errorf("a client takes %d bytes", each)
			}
		})
	}
}

// TestLongHeadersOfStrangers: a header may have a megabyte, and a slow client may send nearly all
// of it. What all of them send is bounded, and a client with a request of the usual size is served.
func TestLongHeadersOfStrangers(t *testing.T) {
	const clients, length, most = 200, 900 << 10, 32 << 20
	s, at := listening(t, Config{Limits: connlimit.Limits{Bytes: most}})
	header := append([]byte("GET / HTTP/1.1\r\nHost: x\r\nX-Long: "), bytes.Repeat([]byte("x"), length)...)
	cost := heapcost.Of(func() {
		c := heapcost.Dial(t, at, clients, heapcost.Sends(header))
		await.True(t, "the server has what the rest has sent", func() bool {
			return s.Strangers()+c.Closed() == clients && s.Held() == int64(s.Strangers()*len(header))
		})
	})
	if held := s.Held(); held > most {
		t.Errorf("%d bytes are held", held)
	}
	// A buffer that grows has room for as much again.
	if cost > 3*most+clients*heapcost.MostEach {
		t.Errorf("%d clients take %d bytes", s.Strangers(), cost)
	}
	answer, err := http.Get("http://" + at)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusNotFound { // there is no handler
		t.Error(answer.Status)
	}
}
