package proxy

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/connlimit"
)

// pipes is a listener of connections in memory, whose deadlines are in the bubble's time.
type pipes struct {
	incoming chan net.Conn
	closed   chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.incoming:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (*pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.incoming <- far
	return near
}

// asksForHealth serves a node's health in a bubble.
func asksForHealth(t *testing.T, test func(count func() int, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(slog.New(slog.DiscardHandler))
		h.succeeded(nil, time.Now())
		p := &pipes{make(chan net.Conn), make(chan struct{})}
		server := h.serveOn(p, http.HandlerFunc(h.ofNode))
		test(server.Strangers, p)
		_ = server.Close()
		h.serving.Wait()
		time.Sleep(time.Minute) // clients learn of it with their next byte
	})
}

// ends says whether the server closes a connection within a time of the bubble.
func ends(conn net.Conn, within time.Duration) bool {
	ended := make(chan struct{})
	go func() { // ends with the connection
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
	}()
	defer conn.Close()
	select {
	case <-ended:
		return true
	case <-time.After(within):
		return false
	}
}

// TestSlowClientsOfHealth: at the ports of health checks, whoever sends nothing, a header or a body
// byte by byte, or takes no answer, is closed, and counted no more.
func TestSlowClientsOfHealth(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		within time.Duration
	}{
		"nothing":      {"", headerTimeout},
		"a header":     {"GET /healthz HTTP/1.1\r\nHost: " + strings.Repeat("x", 10_000), headerTimeout},
		"header lines": {"GET /healthz HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 10_000), headerTimeout},
		"a preface":    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", headerTimeout},
		"a body": {
			"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("b", 10_000),
			time.Minute},
		"a chunked body": {
			"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
				strings.Repeat("1\r\nb\r\n", 10_000), time.Minute},
		"no second request": {"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", idleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			asksForHealth(t, func(count func() int, p *pipes) {
				conn := p.dial()
				whole, rest, sent := strings.Cut(c.text, "\r\n\r\n")
				go func() { // ends with the connection
					if sent { // the header at once, and what comes then byte by byte
						if _, err := io.WriteString(conn, whole+"\r\n\r\n"); err != nil {
							return
						}
					} else {
						rest = c.text
					}
					for _, b := range []byte(rest) {
						time.Sleep(900 * time.Millisecond)
						if _, err := conn.Write([]byte{b}); err != nil {
							return
						}
					}
				}()
				if !ends(conn, c.within+10*time.Second) {
					t.Error("the connection stays open")
				}
				synctest.Wait()
				if n := count(); n != 0 {
					t.Errorf("%d connections are counted", n)
				}
			})
		})
	}
	t.Run("an answer that is not taken", func(t *testing.T) {
		asksForHealth(t, func(count func() int, p *pipes) {
			conn := p.dial()
			defer conn.Close()
			go func() {
				_, _ = io.WriteString(conn,
					strings.Repeat("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 1000))
			}()
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if n := count(); n != 0 {
				t.Errorf("%d connections are counted", n)
			}
		})
	})
}

// TestHealthInAFlood: beside any number of silent connections a load balancer gets its answer.
func TestHealthInAFlood(t *testing.T) {
	asksForHealth(t, func(count func() int, p *pipes) {
		var silent []net.Conn
		for range 2 * connlimit.DefaultTotal {
			silent = append(silent, p.dial())
		}
		synctest.Wait()
		if n := count(); n > connlimit.DefaultTotal {
			t.Errorf("%d connections are open", n)
		}
		conn := p.dial()
		go func() { _, _ = io.WriteString(conn, "GET /healthz HTTP/1.0\r\n\r\n") }()
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.0 200 OK") {
			t.Errorf("the answer is %q, %v", answer, err)
		}
		for _, s := range append(silent, conn) {
			s.Close()
		}
		synctest.Wait()
		if n := count(); n != 0 {
			t.Errorf("%d connections are counted at the end", n)
		}
	})
}
