package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// connectLimit is how long a connection is waited for. A first packet that is lost is sent again
// after a second.
const connectLimit = 3 * time.Second

// connection is a TCP connection in the making or made. Go's own would add the time in which a
// goroutine is woken.
type connection struct{ fd int }

// connect makes a connection from the namespace of the calling thread, and waits until it stands.
func connect(to netip.AddrPort) (c connection, err error) {
	if c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("connect to %s: %w", to, err), c.close())
		}
	}()
	// It is reset when it is closed: nothing of it stays, neither here nor in the tables of the
	// node.
	if err = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return c, err
	}
	err = unix.Connect(c.fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return c, err
	}
	if err = c.wait(unix.POLLOUT); err != nil {
		return c, err
	}
	state, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && state != 0 {
		err = unix.Errno(state)
	}
	return c, err
}

// wait waits until it can be read or written.
func (c connection) wait(event int16) error {
	limit := time.Now().Add(connectLimit)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: event}},
			int(max(0, time.Until(limit).Milliseconds())))
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if time.Now().After(limit) {
			return os.ErrDeadlineExceeded
		}
	}
}

// answered returns which backend says that it is at the other end.
func (c connection) answered() (netip.Addr, error) {
	buffer := make([]byte, 64)
	if err := c.wait(unix.POLLIN); err != nil {
		return netip.Addr{}, err
	}
	n, err := unix.Read(c.fd, buffer)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := netip.ParseAddrPort(string(buffer[:n]))
	return addr.Addr(), err
}

func (c connection) close() error { return unix.Close(c.fd) }

// answering serves all backends: a client that connects gets the address at which it did. close
// ends it.
func (s *site) answering() (close func(), err error) {
	var ln net.Listener
	err = s.backends.Do(func() (err error) {
		ln, err = net.Listen("tcp4", fmt.Sprintf(":%d", backendPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen at the backends: %w", err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { // ends when the listener is closed
		for {
			conn, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // the client is gone already
			}
			_, _ = io.WriteString(conn, conn.LocalAddr().String()) // the client may be gone
			_ = conn.Close()
		}
	})
	return func() { _ = ln.Close(); serving.Wait() }, nil
}
