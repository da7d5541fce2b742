package httpserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/syncbuf"
)

// pipes is a listener of connections in memory, whose deadlines are in the bubble's time.
type pipes struct {
	incoming chan net.Conn
	closed   chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.incoming <- far
	c := &sending{Conn: near, queue: make(chan []byte, 1000), ended: make(chan struct{})}
	go c.send()
	return c
}

// sending is the client's end of a pipe, which sends from a queue, as a kernel does: net.Pipe has
// none, and a client that waits with a lock held would stop the bubble's time.
type sending struct {
	net.Conn
	queue chan []byte
	once  sync.Once
	ended chan struct{}
}

func (s *sending) Write(p []byte) (int, error) {
	select {
	case s.queue <- bytes.Clone(p):
		return len(p), nil
	case <-s.ended:
		return 0, io.ErrClosedPipe
	}
}

func (s *sending) send() {
	defer close(s.ended)
	for p := range s.queue {
		if _, err := s.Conn.Write(p); err != nil || p == nil {
			s.Conn.Close()
			return
		}
	}
}

// Close closes the connection when the queue is empty, or after a minute.
func (s *sending) Close() error {
	s.once.Do(func() {
		go func() {
			select {
			case s.queue <- nil:
			case <-s.ended:
			}
		}()
		time.AfterFunc(time.Minute, func() { s.Conn.Close() })
	})
	return nil
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

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serve serves a handler in a bubble until the test's function returns.
func serve(t *testing.T, secure bool, handler http.HandlerFunc, test func(*Server, *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := newPipes()
		c := Config{Listener: listener, Handler: handler, Logger: slog.New(slog.DiscardHandler)}
		if secure {
			c.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t)}, NextProtos: []string{"h2", "http/1.1"}}
		}
		s := New(c)
		ended := make(chan error, 1)
		go func() { ended <- s.Serve() }()
		test(s, listener)
		_ = s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		time.Sleep(2 * time.Hour) // bodies that the server has given up end by themselves
	})
}

func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"test"},
		NotAfter: time.Now().Add(1000 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// known authenticates requests that show a credential.
func known(r *http.Request) bool {
	if r.Header.Get("Authorization") == "" {
		return false
	}
	Authenticate(r.Context())
	return true
}

const forever = 10 * time.Hour // of a bubble

// client returns a client of HTTP/1 or 2 over the pipes.
func client(p *pipes, http2 bool) *http.Client {
	t := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return p.dial(), nil },
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(!http2)
	t.Protocols.SetHTTP2(http2)
	return &http.Client{Transport: t}
}

// dribble is a body that gives some bytes after each pause.
type dribble struct {
	chunk []byte
	pause time.Duration
	count int
}

func (d *dribble) Read(p []byte) (int, error) {
	if d.count == 0 {
		return 0, io.EOF
	}
	d.count--
	<-time.After(d.pause) // brief: virtual time
	return copy(p, d.chunk), nil
}

// TestUnreadBody: a body of one byte that no handler reads holds a connection only for a short
// time, with and without an answer larger than the server's buffers.
func TestUnreadBody(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write(make([]byte, size))
			}, func(s *Server, p *pipes) {
				conn := p.dial()
				defer conn.Close()
				_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
				ended := make(chan error, 1)
				go func() {
					_, err := io.Copy(io.Discard, conn)
					ended <- err
				}()
				select {
				case <-ended:
				case <-time.After(time.Minute):
					t.Error("the connection is still open after a minute")
				}
			})
		})
	}
}

// TestSlowBodies: a body may be slow, above the minimum rate. It may pause longer for a client with
// a credential. A handler may take its time.
func TestSlowBodies(t *testing.T) {
	for _, c := range []struct {
		name       string
		credential bool
		body       dribble
		thinks     time.Duration // the handler, before it reads
		bad        bool
	}{
		{name: "steady", body: dribble{make([]byte, 10_000), 5 * time.Second, 15}},
		{name: "steady for an hour", credential: true, body: dribble{make([]byte, 10_000), 5 * time.Second, 720}},
		{name: "a pause", body: dribble{make([]byte, 100), 9 * time.Second, 1}},
		{name: "a long pause", body: dribble{make([]byte, 100), 90 * time.Second, 1}, bad: true},
		{name: "a long pause of a client", credential: true, body: dribble{make([]byte, 100), 90 * time.Second, 1}},
		{name: "an endless pause of a client", credential: true, body: dribble{make([]byte, 100), time.Hour, 1},
			bad: true},
		{name: "one byte a second", body: dribble{[]byte("x"), time.Second, 1000}, bad: true},
		{name: "one byte a second of a client", credential: true, body: dribble{[]byte("x"), time.Second, 1000},
			bad: true},
		{name: "a handler that thinks", body: dribble{make([]byte, 3000), time.Second, 10}, thinks: time.Hour},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %t", c.name, http2), func(t *testing.T) {
				var got error
				serve(t, true, func(w http.ResponseWriter, r *http.Request) {
					known(r)
					time.Sleep(c.thinks)
					if _, got = io.Copy(io.Discard, r.Body); got != nil {
						w.WriteHeader(http.StatusRequestTimeout)
					}
				}, func(s *Server, p *pipes) {
					h := client(p, http2)
					defer h.CloseIdleConnections()
					body := c.body
					// ContentLength stays unknown.
					r, _ := http.NewRequest(http.MethodPost, "https://test/", struct{ io.Reader }{&body})
					if c.credential {
						r.Header.Set("Authorization", "x")
					}
					if answer, err := h.Do(r); err == nil {
						answer.Body.Close()
					}
					if c.thinks > 0 && got != nil {
						return // an answer to a stranger has its own deadline
					}
					if bad := got != nil; bad != c.bad || bad && !errors.Is(got, ErrSlowBody) {
						t.Errorf("the body's end is %v; want an error: %t", got, c.bad)
					}
				})
			})
		}
	}
}

// TestLongAnswers: no time-out ends a watch. This holds for a request with a body, and for one
// after a request with a body over the same connection. The handler gets the whole body.
func TestLongAnswers(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, body := range []int{0, 100, earlyBody, 100_000} {
			t.Run(fmt.Sprintf("HTTP/2 %t, %d bytes", http2, body), func(t *testing.T) {
				serve(t, true, func(w http.ResponseWriter, r *http.Request) {
					known(r)
					if r.Method == http.MethodPost || body > earlyBody {
						if n, err := io.Copy(io.Discard, r.Body); n != int64(body) || err != nil {
							t.Errorf("%d bytes of the body: %v", n, err)
						}
					}
					if r.Method == http.MethodGet {
						for range 10 {
							_, _ = io.WriteString(w, "event\n")
							_ = http.NewResponseController(w).Flush()
							select {
							case <-r.Context().Done():
								t.Error("the request has ended")
							case <-time.After(time.Hour):
							}
						}
					}
				}, func(s *Server, p *pipes) {
					h := client(p, http2)
					defer h.CloseIdleConnections()
					for _, method := range []string{http.MethodPost, http.MethodGet} {
						r, _ := http.NewRequest(method, "https://test/", bytes.NewReader(make([]byte, body)))
						r.Header.Set("Authorization", "x")
						answer, err := h.Do(r)
						if err != nil {
							t.Fatal(err)
						}
						text, err := io.ReadAll(answer.Body)
						answer.Body.Close()
						if events := strings.Count(string(text), "event"); err != nil ||
							method == http.MethodGet && events != 10 {
							t.Errorf("%d events: %v", events, err)
						}
					}
				})
			})
		}
	}
}

// TestUnreadAnswer: a stranger that does not read its answer is cut off, a client is not.
func TestUnreadAnswer(t *testing.T) {
	for _, credential := range []bool{false, true} {
		t.Run(fmt.Sprint("credential ", credential), func(t *testing.T) {
			handled := make(chan error, 1)
			serve(t, false, func(w http.ResponseWriter, r *http.Request) {
				known(r)
				_, err := w.Write(make([]byte, 1<<20))
				handled <- err
			}, func(s *Server, p *pipes) {
				handled = make(chan error, 1) // of the bubble
				conn := p.dial()
				_, _ = io.WriteString(conn,
					"GET / HTTP/1.1\r\nHost: x\r\n"+map[bool]string{true: "Authorization: x\r\n"}[credential]+"\r\n")
				select {
				case err := <-handled:
					if credential || err == nil {
						t.Errorf("the answer has ended: %v", err)
					}
				case <-time.After(forever):
					if !credential {
						t.Error("the answer has no end")
					}
				}
				conn.Close()
			})
		})
	}
}

// TestSlowHeaders: a client that sends its header slowly, nothing, or a bad handshake is closed.
func TestSlowHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		secure bool
		bytes  string
	}{
		"nothing":            {false, ""},
		"nothing for TLS":    {true, ""},
		"a header":           {false, strings.Repeat("X", 100_000)},
		"a handshake":        {true, "\x16\x03\x01\x02\x00" + strings.Repeat("\x01", 511)},
		"HTTP for TLS":       {true, "GET / HTTP/1.1\r\n\r\n"},
		"a preface in clear": {false, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			serve(t, c.secure, func(http.ResponseWriter, *http.Request) {}, func(s *Server, p *pipes) {
				conn := p.dial()
				defer conn.Close()
				go func() {
					for _, b := range []byte(c.bytes) {
						if _, err := conn.Write([]byte{b}); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}()
				ended := make(chan struct{})
				go func() {
					_, _ = io.Copy(io.Discard, conn)
					close(ended)
				}()
				select {
				case <-ended:
				case <-time.After(time.Hour):
					t.Error("the connection is open after an hour")
				}
				synctest.Wait()
				if n := s.Strangers(); n != 0 {
					t.Errorf("%d connections are counted", n)
				}
			})
		})
	}
}

// TestStrangersAreBounded: clients are served beside many silent connections, and an authenticated
// client keeps its connection.
func TestStrangersAreBounded(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", http2), func(t *testing.T) {
			serve(t, true, func(w http.ResponseWriter, r *http.Request) {
				if known(r) {
					_, _ = io.WriteString(w, "known")
				}
			}, func(s *Server, p *pipes) {
				h := client(p, http2)
				defer h.CloseIdleConnections()
				ask := func() {
					t.Helper()
					r, _ := http.NewRequest(http.MethodGet, "https://test/", nil)
					r.Header.Set("Authorization", "x")
					answer, err := h.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					text, err := io.ReadAll(answer.Body)
					answer.Body.Close()
					if err != nil || string(text) != "known" {
						t.Fatalf("%q: %v", text, err)
					}
				}
				ask()
				dialed := make(chan net.Conn, 2*connlimit.DefaultTotal)
				for range cap(dialed) {
					dialed <- p.dial()
				}
				synctest.Wait()
				if n := s.Strangers(); n > connlimit.DefaultTotal {
					t.Errorf("%d connections of strangers", n)
				}
				ask() // over its old connection
				h.CloseIdleConnections()
				ask() // over a new one
				close(dialed)
				for conn := range dialed {
					conn.Close()
				}
				synctest.Wait()
				if n := s.Strangers(); n != 0 {
					t.Errorf("%d connections of strangers at the end", n)
				}
			})
		})
	}
}

// TestBadFramesAreLoggedRarely: strangers cannot fill the log.
func TestBadFramesAreLoggedRarely(t *testing.T) {
	var out syncbuf.Buffer
	failed := 0
	e := &errorLog{logger: slog.New(slog.NewTextHandler(&out, nil)), handshakeFailed: func() { failed++ }}
	for i := range 10_000 {
		fmt.Fprintf(e, "http: TLS handshake error from 10.0.0.1:%d: EOF\n", i)
		fmt.Fprintf(e, "http2: server: error reading preface from client 10.0.0.1:%d: bogus greeting %q\n", i,
			fmt.Sprint(i))
		fmt.Fprintf(e, "http2: server connection error from 10.0.0.1:%d: connection error: PROTOCOL_ERROR\n", i)
	}
	if n := strings.Count(out.String(), "\n"); n == 0 || n > 40 || failed != 10_000 {
		t.Errorf("%d lines, %d failed handshakes", n, failed)
	}
}

// TestPipelines: a connection whose first request has a body goes on with the next one.
func TestPipelines(t *testing.T) {
	serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("%d bytes: %v", len(body), err)
		}
		_, _ = w.Write(body)
	}, func(s *Server, p *pipes) {
		conn := p.dial()
		defer conn.Close()
		answers := bufio.NewReader(conn)
		for i := range 20 {
			body := strings.Repeat("x", i*1000)
			go fmt.Fprintf(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			answer, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, answer.Body); n != int64(len(body)) || err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			time.Sleep(100 * time.Second) // idle
		}
	})
}

// TestStreamsOfANewConnection: a client sends several requests at once over a new connection. The
// time-out for strangers ends for all of them, not only for the first that authenticates.
func TestStreamsOfANewConnection(t *testing.T) {
	const watches = 3
	var begun *sync.WaitGroup // of the bubble
	serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		begun.Done()
		begun.Wait()
		known(r)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			t.Error("a watch has ended")
		case <-time.After(time.Hour):
		}
		_, _ = io.WriteString(w, "event\n")
	}, func(s *Server, p *pipes) {
		begun = new(sync.WaitGroup)
		begun.Add(watches)
		h := client(p, true)
		defer h.CloseIdleConnections()
		var all sync.WaitGroup
		for range watches {
			all.Go(func() {
				r, err := http.NewRequest(http.MethodGet, "https://test/", nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", "x")
				answer, err := h.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				defer answer.Body.Close()
				if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "event\n" {
					t.Errorf("%q, %v", text, err)
				}
			})
		}
		all.Wait()
	})
}
