// Package netspace does things in the network namespaces of a test cluster's nodes, from the test's own process.
package netspace

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/osthread"
)

// Do calls f on a thread that is in the named network namespace and ends with it. What it opens belongs there for ever.
func Do(namespace string, f func() error) error {
	return osthread.Do(func() error {
		there, err := netns.GetFromName(namespace)
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", namespace, err)
		}
		defer there.Close()
		if err := netns.Set(there); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", namespace, err)
		}
		return f()
	})
}

// Listen opens a port in the named network namespace.
func Listen(namespace, network, address string) (listener net.Listener, err error) {
	err = Do(namespace, func() (err error) {
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// Dial connects from the named network namespace. The address must be one of IP and port: a name would be looked up
// elsewhere.
func Dial(ctx context.Context, namespace, network, address string) (conn net.Conn, err error) {
	err = Do(namespace, func() (err error) {
		// One address is dialled on the calling goroutine, and so on this thread.
		conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
