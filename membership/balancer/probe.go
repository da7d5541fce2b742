package balancer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// connectTimeout bounds the set-up of a connection, and again that of its TLS. It may exceed a
	// probe, which does not end it: a lost SYN is repeated after a second, and servers may be far.
	connectTimeout = 2 * time.Second
	// laneIdle is how long a connection stays that is not asked over.
	laneIdle = 10 * time.Second
)

// ReadyProbe requests a server's /readyz over TLS. Any answer but 200 is ErrNotReady. It keeps a
// connection for each lane, so that a probe costs one exchange. It drops a connection after an
// unanswered probe.
func ReadyProbe(config *tls.Config) func(ctx context.Context, server netip.AddrPort, lane int) error {
	return newReadyProbe(config, connectTimeout, laneIdle).ask
}

type lane struct {
	server netip.AddrPort
	number int
}

type readyProbe struct {
	config        *tls.Config
	connect, idle time.Duration // connectTimeout and laneIdle

	mu      sync.Mutex
	clients map[lane]*http.Client // each has one connection
}

func newReadyProbe(config *tls.Config, connect, idle time.Duration) *readyProbe {
	return &readyProbe{config: config, connect: connect, idle: idle, clients: map[lane]*http.Client{}}
}

func (p *readyProbe) client(l lane) *http.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.clients[l]
	if c == nil {
		c = &http.Client{Transport: &http.Transport{
			TLSClientConfig: p.config, ForceAttemptHTTP2: true, MaxConnsPerHost: 1,
			DialContext:         (&net.Dialer{Timeout: p.connect}).DialContext,
			TLSHandshakeTimeout: p.connect, IdleConnTimeout: p.idle,
		}}
		p.clients[l] = c
	}
	return c
}

// drop has the next probe of the lane use another connection.
func (p *readyProbe) drop(l lane, c *http.Client) {
	c.CloseIdleConnections()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[l] == c {
		delete(p.clients, l)
	}
}

func (p *readyProbe) ask(ctx context.Context, server netip.AddrPort, number int) error {
	l := lane{server, number}
	client := p.client(l)
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx,
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(traced, http.MethodGet, "https://"+server.String()+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		// A connection without an answer may hang. One in set-up continues, for the next probe. A
		// probe cancelled by its caller is no evidence.
		if connected.Load() && !errors.Is(context.Cause(ctx), context.Canceled) {
			p.drop(l, client)
		}
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s: %w", server, response.Status, ErrNotReady)
	}
	return nil
}
