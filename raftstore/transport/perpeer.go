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

// guests counts the connections of each authenticated peer, by its certificate: a faulty server, or
// an attacker with its key, takes no more than its share of memory and file descriptors.
type guests struct {
	most int

	mu    sync.Mutex
	count map[[sha256.Size]byte]int
	open  map[*guest]struct{}
}

func newGuests(most int) *guests {
	return &guests{most: most, count: make(map[[sha256.Size]byte]int), open: make(map[*guest]struct{})}
}

// all returns the open connections.
func (g *guests) all() []*guest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.open))
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
func (g *guests) admit(conn *tls.Conn, by *Mux) (*guest, error) {
	shown := conn.ConnectionState().PeerCertificates
	leaf := shown[0]
	of := sha256.Sum256(leaf.Raw)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count[of] >= g.most {
		return nil, &TooManyError{leaf.Subject.CommonName, g.most}
	}
	g.count[of]++
	admitted := &guest{Conn: conn, of: of, in: g, by: by, shown: shown}
	g.open[admitted] = struct{}{}
	return admitted, nil
}

// guest is a connection that is counted.
type guest struct {
	*tls.Conn
	of    [sha256.Size]byte
	in    *guests
	by    *Mux
	shown []*x509.Certificate
	good  atomic.Uint64 // the count of checks with which it was found not to be barred, plus one
	once  sync.Once
}

// PeerName returns the name in the peer's certificate.
func (g *guest) PeerName() string { return g.shown[0].Subject.CommonName }

// Barred returns the reason why the peer may not speak, or nil; see Config.Barred.
func (g *guest) Barred() error {
	checks := g.by.checks.Load() + 1
	if g.good.Load() == checks {
		return nil
	}
	err := g.by.barred(g.shown)
	if err == nil {
		g.good.Store(checks)
	}
	return err
}

// Close implements net.Conn.
func (g *guest) Close() error {
	g.once.Do(func() {
		g.in.mu.Lock()
		defer g.in.mu.Unlock()
		delete(g.in.open, g)
		if g.in.count[g.of]--; g.in.count[g.of] == 0 {
			delete(g.in.count, g.of)
		}
	})
	return g.Conn.Close()
}
