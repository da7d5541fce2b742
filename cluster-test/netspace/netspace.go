// Package netspace does things in the network namespaces of a test cluster's nodes, from the test's own process.
package netspace

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netns"
)

// Do calls f on a thread that is in the named network namespace. What it opens belongs there for ever. The thread comes
// back before anything else runs on it; one that cannot is given up.
func Do(namespace string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- visit(namespace, f)
	}()
	return <-done
}

// visit unlocks the thread when it is back.
func visit(namespace string, f func() error) error {
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	there, err := netns.GetFromName(namespace)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", namespace, err)
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", namespace, err)
	}
	err = f()
	if netns.Set(home) == nil {
		runtime.UnlockOSThread()
	}
	return err
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
