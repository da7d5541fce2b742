package path

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Port is one at which nodes speak with each other.
type Port struct {
	Number uint16
	UDP    bool
	// For is its purpose.
	For string
	// ServerOnly tells that an agent does not need the port, and that the machine may be one.
	ServerOnly bool
}

func (p Port) network() string {
	if p.UDP {
		return "udp"
	}
	return "tcp"
}

// Contact is the result of a packet to a port.
type Contact string

const (
	// Listens means that a process answers there. It is never known for UDP.
	Listens Contact = "listens"
	// Closed is the answer of a machine where nothing listens. A firewall that rejects may give the
	// same one.
	Closed Contact = "closed"
	// Rejected means that a machine on the way answers that the packet is filtered or has no route.
	Rejected Contact = "rejected"
	// Unanswered means that nothing came back. A UDP port in use looks so, too.
	Unanswered Contact = "unanswered"
)

// dialPatience is how long a connection may take: the first packet may be lost twice.
const dialPatience = 4 * time.Second

// Ask finds out whether packets from here arrive at a port of another machine.
func Ask(ctx context.Context, addr netip.Addr, port Port) (Contact, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	at := netip.AddrPortFrom(addr, port.Number).String()
	conn, err := new(net.Dialer).DialContext(ctx, port.network(), at)
	if err == nil {
		defer conn.Close()
		if !port.UDP {
			return Listens, nil
		}
		err = probe(conn)
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Closed, nil
	case isUnreachable(err) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return Rejected, nil
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, unix.ETIMEDOUT):
		return Unanswered, nil
	case err == nil: // a process answers a meaningless byte
		return Listens, nil
	}
	return "", fmt.Errorf("ask %s %s: %w", port.network(), at, err)
}

// probe sends a byte that is no message of our protocols, and waits for an answer.
func probe(conn net.Conn) error {
	var err error
	for range tries {
		if _, err = conn.Write([]byte{0}); err != nil {
			return err // the kernel reports the answer to the previous packet
		}
		if err = conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err = conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}
