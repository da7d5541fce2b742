package conns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Asked asks the kernel for the address that a client's packets had before they were led here; it
// is the socket's own where nobody has led them.
func Asked(conn net.Conn) (netip.Addr, error) {
	own := AddrOf(conn.LocalAddr()).Addr()
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return own, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return own, err
	}
	var addr netip.Addr
	var failed error
	err = raw.Control(func(fd uintptr) {
		if own.Is4() {
			addr, failed = asked4(int(fd))
		} else {
			addr, failed = asked6(int(fd))
		}
	})
	switch {
	case errors.Is(failed, unix.ENOENT): // no packet of it has been translated
		return own, nil
	case failed != nil:
		family := "IPv4"
		if !own.Is4() {
			family = "IPv6"
		}
		return own, fmt.Errorf("this kernel does not tell the address that a client has asked for (SO_ORIGINAL_DST of "+
			"%s): it needs connection tracking (nf_conntrack) of this family: %w", family, failed)
	}
	return addr, err
}

// asked4 reads a sockaddr_in: family, port, address. Only the type of this call's result is long
// enough for it.
func asked4(fd int) (netip.Addr, error) {
	m, err := unix.GetsockoptIPv6Mreq(fd, unix.IPPROTO_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), nil
}

// asked6 reads a sockaddr_in6, with which the result of this call begins.
func asked6(fd int) (netip.Addr, error) {
	// linux/netfilter_ipv6/ip6_tables.h
	const originalDestination = 80
	m, err := unix.GetsockoptIPv6MTUInfo(fd, unix.IPPROTO_IPV6, originalDestination)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.AddrFrom16(m.Addr.Addr), nil
}
