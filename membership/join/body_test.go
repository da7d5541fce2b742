package join

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// pipe is a listener in memory, so that a server runs in virtual time.
type pipe struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	close(p.done)
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.TCPAddr{} }

// A request whose body does not arrive is given up after a time. One that has arrived is not,
// however long the answer takes.
func TestHowLongARequestMayTake(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"token":"b1.%s.abcdef.0123456789abcdef","name":"s2","address":"10.0.0.2"}`, ca.Digest())
	for name, c := range map[string]struct {
		sent   string
		lacks  int // bytes, that do not come
		status int
		after  time.Duration
	}{
		"a slow answer":       {body, 0, http.StatusForbidden, 3 * bodyTimeout},
		"half a body":         {body[:20], len(body) - 20, http.StatusBadRequest, bodyTimeout},
		"a body with no end":  {body, 1, http.StatusBadRequest, bodyTimeout},
		"a body that is text": {"what?", 0, http.StatusBadRequest, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHandler(Config{Authority: pki.TrustOf(ca), Now: time.Now, Logger: slog.New(slog.DiscardHandler),
					CheckToken: func(ctx context.Context, _ token.Proof, _ token.Attempt) error {
						select {
						case <-ctx.Done():
							return context.Cause(ctx)
						case <-time.After(3 * bodyTimeout):
							return token.ErrUnknown
						}
					}})
				listener := &pipe{conns: make(chan net.Conn), done: make(chan struct{})}
				server := &http.Server{Handler: h}
				served := make(chan error, 1)
				go func() { served <- server.Serve(listener) }()
				near, far := net.Pipe()
				listener.conns <- far
				began := time.Now()
				if _, err := io.WriteString(near,
					fmt.Sprintf("POST %sserver HTTP/1.1\r\nHost: s1\r\nContent-Length: %d\r\n\r\n%s", Prefix,
						len(c.sent)+c.lacks, c.sent)); err != nil {
					t.Fatal(err)
				}
				response, err := http.ReadResponse(bufio.NewReader(near), nil)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(response.Body) // its end is the connection's, perhaps
				if took := time.Since(began); response.StatusCode != c.status || took < c.after ||
					took > c.after+time.Second {
					t.Errorf("%s after %v, want %d after %v: %s", response.Status, took, c.status, c.after,
						strings.TrimSpace(string(text)))
				}
				near.Close()
				server.Close()
				<-served
			})
		})
	}
}
