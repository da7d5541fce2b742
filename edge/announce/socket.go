package announce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// link is an interface on which addresses are announced.
type link struct {
	index int
	name  string
	mac   net.HardwareAddr
}

// socket has the packets of one link and one protocol.
type socket struct {
	link link
	file *os.File // an AF_PACKET socket, of Go's poller
	raw  syscallConn
	// groups is a socket of IPv6 that is a member of multicast groups; -1 for ARP.
	groups int
}

// syscallConn is the part of a syscall.RawConn that is used.
type syscallConn interface {
	Read(func(fd uintptr) (done bool)) error
	Write(func(fd uintptr) (done bool)) error
}

// ofNeighbours lets solicitations and advertisements pass: ICMPv6 in the first header, of type 135
// or 136. Other IPv6 packets never leave the kernel.
var ofNeighbours = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: etherLen + 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: icmpv6, Jf: 4},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: etherLen + ipv6Len},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: solicitation, Jt: 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: advertisement, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// open opens a link for ARP, or for neighbour discovery.
func open(l link, ipv6 bool) (_ *socket, err error) {
	kind := uint16(typeARP)
	if ipv6 {
		kind = typeIPv6
	}
	// It has no protocol before it has its filter and its link, so that it gets no foreign packet.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	s := &socket{link: l, groups: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.file = os.NewFile(uintptr(fd), "packets of "+l.name)
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return s, err
	}
	if ipv6 {
		filter := unix.SockFprog{Len: uint16(len(ofNeighbours)), Filter: &ofNeighbours[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
			return s, fmt.Errorf("filter the packets of %s: %w", l.name, err)
		}
		if s.groups, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			s.groups = -1
			return s, fmt.Errorf("open a socket of IPv6: %w", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(kind), Ifindex: l.index}); err != nil {
		return s, fmt.Errorf("read the packets of %s: %w", l.name, err)
	}
	return s, nil
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

// read reads the next frame that another machine has sent. The error is os.ErrClosed after close.
func (s *socket) read(buffer []byte) (n int, err error) {
	for {
		var from unix.Sockaddr
		var failed error
		err = s.raw.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), buffer, 0)
			return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
		})
		if err != nil { // Go's poller has no other error than that the file is closed
			return 0, os.ErrClosed
		}
		if failed != nil {
			return 0, failed
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype != unix.PACKET_OUTGOING {
			return n, nil
		}
	}
}

// send sends a frame if may still permits it. may is asked last of all.
func (s *socket) send(frame []byte, may func() bool) (sent bool, err error) {
	to := &unix.SockaddrLinklayer{Ifindex: s.link.index, Halen: macLen}
	copy(to.Addr[:], frame[:macLen])
	var failed error
	err = s.raw.Write(func(fd uintptr) bool {
		if sent = may(); sent {
			failed = unix.Sendto(int(fd), frame, 0, to)
		}
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	return sent, errors.Join(err, failed)
}

// join and leave change the memberships in the group of an IPv6 address. Without it, switches and
// the network card would drop the questions about the address.
func (s *socket) join(addr netip.Addr) error { return s.membership(unix.IPV6_JOIN_GROUP, addr) }

func (s *socket) leave(addr netip.Addr) error { return s.membership(unix.IPV6_LEAVE_GROUP, addr) }

func (s *socket) membership(option int, addr netip.Addr) error {
	of := &unix.IPv6Mreq{Multiaddr: group(addr).As16(), Interface: uint32(s.link.index)}
	return unix.SetsockoptIPv6Mreq(s.groups, unix.IPPROTO_IPV6, option, of)
}

// close ends a read. Memberships end with it.
func (s *socket) close() error {
	err := s.file.Close()
	if s.groups >= 0 {
		err = errors.Join(err, unix.Close(s.groups))
	}
	return err
}

// errNetDown is the error of a socket whose interface is down.
var errNetDown error = unix.ENETDOWN
