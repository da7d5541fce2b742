package transport

import "net"

// Admit treats a connection as one that the listener has accepted.
func (m *Mux) Admit(conn net.Conn) {
	if p := m.handshakes.enter(conn); p != nil {
		m.admit(p)
	}
}

// Unauthenticated returns how many connections are not authenticated yet, and how many peers have
// some that are.
func (m *Mux) Unauthenticated() (unauthenticated, peers int) {
	m.handshakes.mu.Lock()
	defer m.handshakes.mu.Unlock()
	m.perPeer.mu.Lock()
	defer m.perPeer.mu.Unlock()
	if len(m.handshakes.from) > m.handshakes.count {
		panic("sources without connections")
	}
	return m.handshakes.count, len(m.perPeer.count)
}
