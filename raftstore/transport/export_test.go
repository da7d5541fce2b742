package transport

import "net"

// Admit treats a connection as one that the listener has accepted.
func (m *Mux) Admit(conn net.Conn) {
	if v := m.door.enter(conn); v != nil {
		m.admit(v)
	}
}

// AtDoor returns how many connections are not authenticated yet, and how many peers have some that
// are.
func (m *Mux) AtDoor() (unauthenticated, peers int) {
	m.door.mu.Lock()
	defer m.door.mu.Unlock()
	m.guests.mu.Lock()
	defer m.guests.mu.Unlock()
	if len(m.door.from) > m.door.count {
		panic("sources without connections")
	}
	return m.door.count, len(m.guests.count)
}
