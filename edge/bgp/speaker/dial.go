package speaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialPatience bounds the wait for a connection. With a wrong password the peer's kernel answers
// nothing.
const dialPatience = 5 * time.Second

// MaxPassword is the longest password that the kernel takes.
const MaxPassword = unix.TCP_MD5SIG_MAXKEYLEN

// dial opens the connection of a session.
func dial(ctx context.Context, p *Peer) (net.Conn, error) {
	d := net.Dialer{Timeout: dialPatience, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if control := c.Control(func(fd uintptr) { err = prepare(int(fd), p) }); control != nil {
			return control
		}
		return err
	}}
	d.SetMultipathTCP(false) // no MD5 there
	if p.Source.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: p.Source.AsSlice()}
	}
	conn, err := d.DialContext(ctx, "tcp", p.Address.String())
	late, timed := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case timed && late.Timeout():
		if p.Password != "" {
			return nil, fmt.Errorf("%s does not answer: it has another password, or cannot be reached", p.Address)
		}
		return nil, fmt.Errorf("%s does not answer: it wants a password, or cannot be reached", p.Address)
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%s refuses connections: no BGP speaker listens there, or it does not know this node",
			p.Address)
	case errors.Is(err, unix.EADDRNOTAVAIL) && p.Source.IsValid():
		return nil, fmt.Errorf("the source address %s is none of this node's", p.Source)
	}
	return nil, err
}

// prepare sets the options of a socket before it connects.
func prepare(fd int, p *Peer) error {
	if p.Password != "" {
		key := signature(p.Address.Addr(), p.Password)
		if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, key); err != nil {
			return fmt.Errorf("sign the session by TCP MD5: %w; the kernel needs CONFIG_TCP_MD5SIG", err)
		}
	}
	ttl := p.TTL
	if ttl == 0 && p.AS != p.LocalAS {
		ttl = 1 // a neighbour
	}
	if ttl == 0 {
		return nil
	}
	if p.Address.Addr().Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, ttl)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
}

// signature is the kernel's form of a password for a peer.
func signature(peer netip.Addr, password string) *unix.TCPMD5Sig {
	var s unix.TCPMD5Sig
	if peer.Is4() {
		s.Addr.Family = unix.AF_INET
		of := peer.As4()
		copy(s.Addr.Data[2:], of[:]) // behind the port of a sockaddr_in
	} else {
		s.Addr.Family = unix.AF_INET6
		of := peer.As16()
		copy(s.Addr.Data[6:], of[:]) // behind the port and the flow of a sockaddr_in6
	}
	s.Keylen = uint16(copy(s.Key[:], password))
	return &s
}
