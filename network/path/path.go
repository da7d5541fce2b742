// Package path finds out whether packets of a link's full size reach other machines. It sends ICMP
// echo requests, which the kernel of the other machine answers, in packets that must not be
// fragmented. Only that finds a router that silently drops large packets: connections open, and
// hang with the first large answer.
//
// It also examines, for `barque check`, whether this machine reaches the ports of machines that it
// is to be in a cluster with.
package path

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/network/nodeaddr"
)

// Answer is the result of probing one machine.
type Answer string

const (
	// Whole means that packets of the full size arrive.
	Whole Answer = "whole"
	// Small means that only small packets arrive.
	Small Answer = "small only"
	// Silent means that there is no answer: the machine is off, or ICMP is dropped on the way.
	Silent Answer = "silent"
)

// Finding is about the way to one machine.
type Finding struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"`
	// Size is the MTU of the link towards the address.
	Size   int    `json:"size"`
	Answer Answer `json:"answer"`
	Error  string `json:"error,omitempty"`
}

// Bounds of one probe.
const (
	smallSize = 128 // of packets that pass everywhere
	tries     = 3
	patience  = 500 * time.Millisecond // for each try
	atOnce    = 16
)

// ProbeAll probes machines by their addresses, several at once. Its time is bounded by their
// number.
func ProbeAll(ctx context.Context, addresses map[string]netip.Addr, own netip.Addr) []Finding {
	findings := make([]Finding, 0, len(addresses))
	for node, addr := range addresses {
		findings = append(findings, Finding{Node: node, Address: addr})
	}
	size := 0
	link, err := nodeaddr.Link(own)
	if err == nil {
		size = link.Attrs().MTU
	}
	var asking sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for i := range findings {
		asking.Go(func() { // ends with its probe
			places <- struct{}{}
			defer func() { <-places }()
			f := &findings[i]
			f.Size = size
			failed := err
			if failed == nil {
				f.Answer, failed = Probe(ctx, f.Address, size)
			}
			if failed != nil {
				f.Error = failed.Error()
			}
		})
	}
	asking.Wait()
	return findings
}

// Probe asks one machine with packets of a size, headers and all.
func Probe(ctx context.Context, addr netip.Addr, size int) (Answer, error) {
	for _, attempt := range []struct {
		size   int
		answer Answer
	}{{size, Whole}, {smallSize, Small}} {
		arrived, err := echo(ctx, addr, attempt.size)
		if err != nil {
			return "", fmt.Errorf("ask %v: %w", addr, err)
		}
		if arrived {
			return attempt.answer, nil
		}
	}
	return Silent, nil
}

// echo tells whether a packet of the size is answered.
func echo(ctx context.Context, addr netip.Addr, size int) (bool, error) {
	fd, err := open(addr)
	if isUnreachable(err) {
		return false, nil // no way leads there
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	id := uint16(fd) ^ uint16(unix.Getpid())
	buffer := make([]byte, 1<<16)
	for sequence := range uint16(tries) {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		err := unix.Send(fd, question(addr.Is6(), id, sequence, size), 0)
		if errors.Is(err, unix.EMSGSIZE) {
			return false, nil
		}
		if err != nil && !isUnreachable(err) && !errors.Is(err, unix.ENOBUFS) { // that one was lost on this machine
			return false, err
		}
		for until := time.Now().Add(patience); time.Now().Before(until); {
			n, err := unix.Read(fd, buffer)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				break // it was too long, or the machine is unreachable
			}
			if isAnswer(addr.Is6(), buffer[:n], id) {
				return true, nil
			}
		}
	}
	return false, nil
}

func isUnreachable(err error) bool {
	return errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTDOWN)
}

// open makes a socket for packets that must not be fragmented, whatever the kernel's cached path
// MTU.
func open(addr netip.Addr) (int, error) {
	family, protocol, level, option, value := unix.AF_INET, unix.IPPROTO_ICMP, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
		unix.IP_PMTUDISC_PROBE
	var to unix.Sockaddr
	if addr.Is6() {
		family, protocol, level, option, value = unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPV6,
			unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
		to = &unix.SockaddrInet6{Addr: addr.As16()}
	} else {
		to = &unix.SockaddrInet4{Addr: addr.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return 0, err
	}
	wait := unix.NsecToTimeval(int64(patience))
	err = errors.Join(unix.SetsockoptInt(fd, level, option, value),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

const (
	header4, header6, headerICMP = 20, 40, 8
	request4, answer4            = 8, 0
	request6, answer6            = 128, 129
)

// question is an ICMP echo request; with its IP header it has the size.
func question(is6 bool, id, sequence uint16, size int) []byte {
	header, kind := header4, byte(request4)
	if is6 {
		header, kind = header6, request6
	}
	packet := make([]byte, max(size-header, headerICMP))
	packet[0] = kind
	binary.BigEndian.PutUint16(packet[4:], id)
	binary.BigEndian.PutUint16(packet[6:], sequence)
	if !is6 { // of IPv6 the kernel does it
		binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	}
	return packet
}

// isAnswer reports whether a packet answers our probe. Packets of IPv4 come with their header.
func isAnswer(is6 bool, packet []byte, id uint16) bool {
	kind := byte(answer6)
	if !is6 {
		kind = answer4
		if len(packet) == 0 {
			return false
		}
		header := int(packet[0]&0x0f) * 4
		if len(packet) < header {
			return false
		}
		packet = packet[header:]
	}
	return len(packet) >= headerICMP && packet[0] == kind && binary.BigEndian.Uint16(packet[4:]) == id
}

// checksum is that of RFC 1071.
func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	if len(data)%2 == 1 {
		sum += uint32(data[len(data)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
