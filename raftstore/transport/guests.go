package transport

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"sync"
)

// guests counts the connections of each authenticated peer, by its certificate: a faulty server, or
// an attacker with its key, takes no more than its share of memory and file descriptors.
type guests struct {
	most int

	mu    sync.Mutex
	count map[[sha256.Size]byte]int
}

func newGuests(most int) *guests {
	return &guests{most: most, count: make(map[[sha256.Size]byte]int)}
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
func (g *guests) admit(conn *tls.Conn) (*guest, error) {
	leaf := conn.ConnectionState().PeerCertificates[0]
	of := sha256.Sum256(leaf.Raw)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count[of] >= g.most {
		return nil, &TooManyError{leaf.Subject.CommonName, g.most}
	}
	g.count[of]++
	return &guest{Conn: conn, of: of, in: g}, nil
}

// guest is a connection that is counted.
type guest struct {
	*tls.Conn
	of   [sha256.Size]byte
	in   *guests
	once sync.Once
}

// Close implements net.Conn.
func (g *guest) Close() error {
	g.once.Do(func() {
		g.in.mu.Lock()
		defer g.in.mu.Unlock()
		if g.in.count[g.of]--; g.in.count[g.of] == 0 {
			delete(g.in.count, g.of)
		}
	})
	return g.Conn.Close()
}
