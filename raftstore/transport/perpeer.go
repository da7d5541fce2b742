package transport

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// perPeer counts the connections of each authenticated peer, by its certificate: a faulty server,
// or an attacker with its key, takes no more than its share of memory and file descriptors.
type perPeer struct {
	most int

	mu    sync.Mutex
	count map[[sha256.Size]byte]int
	open  map[*peerConn]struct{}
}

func newPerPeer(most int) *perPeer {
	return &perPeer{most: most, count: make(map[[sha256.Size]byte]int), open: make(map[*peerConn]struct{})}
}

// all returns the open connections.
func (p *perPeer) all() []*peerConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.open))
}

// TooManyError is the reason why a connection of an authenticated peer is closed at once.
type TooManyError struct {
	Peer  string // the name in its certificate
	Limit int
}

func (e *TooManyError) Error() string {
	return fmt.Sprintf("%q has %d connections open, which is the limit for one server", e.Peer, e.Limit)
}

// admit counts a connection until it is closed.
func (p *perPeer) admit(conn *tls.Conn, by *Mux) (*peerConn, error) {
	shown := conn.ConnectionState().PeerCertificates
	leaf := shown[0]
	of := sha256.Sum256(leaf.Raw)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count[of] >= p.most {
		return nil, &TooManyError{leaf.Subject.CommonName, p.most}
	}
	p.count[of]++
	admitted := &peerConn{Conn: conn, of: of, in: p, by: by, shown: shown}
	p.open[admitted] = struct{}{}
	return admitted, nil
}

// peerConn is a connection that is counted.
type peerConn struct {
	*tls.Conn
	of    [sha256.Size]byte
	in    *perPeer
	by    *Mux
	shown []*x509.Certificate
	good  atomic.Uint64 // the count of checks with which it was found not to be barred, plus one
	once  sync.Once
}

// PeerName returns the name in the peer's certificate.
func (c *peerConn) PeerName() string { return c.shown[0].Subject.CommonName }

// Barred returns the reason why the peer may not speak, or nil; see Config.Barred.
func (c *peerConn) Barred() error {
	checks := c.by.checks.Load() + 1
	if c.good.Load() == checks {
		return nil
	}
	err := c.by.barred(c.shown)
	if err == nil {
		c.good.Store(checks)
	}
	return err
}

// Close implements net.Conn.
func (c *peerConn) Close() error {
	c.once.Do(func() {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		delete(c.in.open, c)
		if c.in.count[c.of]--; c.in.count[c.of] == 0 {
			delete(c.in.count, c.of)
		}
	})
	return c.Conn.Close()
}
