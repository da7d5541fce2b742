// Package netspace makes network namespaces for tests, and listens and dials in those of a test
// cluster's nodes, from the test's own process.
package netspace

import (
	"context"
	"net"

	"github.com/barque/barque/internal/osthread"
)

// Listen opens a port in the named network namespace.
func Listen(namespace, network, address string) (listener net.Listener, err error) {
	err = osthread.InNetwork(namespace, func() (err error) {
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// Dial connects from the named network namespace. The address must be one of IP and port: a name
// would be looked up elsewhere.
func Dial(ctx context.Context, namespace, network, address string) (conn net.Conn, err error) {
	err = osthread.InNetwork(namespace, func() (err error) {
		// One address is dialled on the calling goroutine, and so on this thread.
		conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
