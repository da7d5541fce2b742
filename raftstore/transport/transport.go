// Package transport connects the servers of a cluster: one port, TLS with certificates on both
// sides, and several protocols on it, selected by ALPN.
//
// Invariants: a connection from a Listener or Dial is authenticated: its peer has a certificate of
// the cluster's CA that makes it a server. A connection with another protocol, or a slow one, is
// closed. It costs a bounded number of goroutines and disturbs no other connection.
//
// Package memnet has the same in memory, for tests.
package transport

import (
	"context"
	"net"
)

// Stream is the transport between servers.
type Stream interface {
	// Listener returns the connections that peers open for the protocol. It is called once for
	// each protocol.
	Listener(proto string) net.Listener
	// Dial opens a connection for the protocol to the server at the address.
	Dial(ctx context.Context, addr, proto string) (net.Conn, error)
	// Addr is the address at which peers reach this server.
	Addr() string
	// Close closes all listeners and ends accepting. Connections stay with their owners.
	Close() error
}

// ServerOrganization marks, in the subject of a certificate, a server of the cluster.
const ServerOrganization = "barque:servers"
