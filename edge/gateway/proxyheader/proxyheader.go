// Package proxyheader reads the header of the PROXY protocol, versions 1 and 2, by which a load
// balancer names its client: https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt.
package proxyheader

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// signature begins version 2.
var signature = []byte("\r\n\r\n\x00\r\nQUIT\n")

const (
	longestV1 = 107
	longestV2 = 536 // what the specification wants receivers to take, and then some
)

// ErrHeader is returned for bytes that are none.
var ErrHeader = errors.New("not a header of the PROXY protocol")

// Read reads the header by which a balancer names its client. It returns no address where the
// balancer speaks for itself.
func Read(r *bufio.Reader) (netip.AddrPort, error) {
	first, err := r.Peek(1)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if first[0] == 'P' {
		return readV1(r)
	}
	return readV2(r)
}

func readV1(r *bufio.Reader) (netip.AddrPort, error) {
	var line []byte
	for !bytes.HasSuffix(line, []byte("\r\n")) {
		b, err := r.ReadByte()
		if err != nil {
			return netip.AddrPort{}, err
		}
		if line = append(line, b); len(line) > longestV1 {
			return netip.AddrPort{}, fmt.Errorf("%w: the line is longer than %d bytes", ErrHeader, longestV1)
		}
	}
	fields := strings.Split(string(line[:len(line)-2]), " ")
	if fields[0] != "PROXY" || len(fields) < 2 {
		return netip.AddrPort{}, ErrHeader
	}
	if fields[1] == "UNKNOWN" {
		return netip.AddrPort{}, nil
	}
	if len(fields) != 6 || fields[1] != "TCP4" && fields[1] != "TCP6" {
		return netip.AddrPort{}, ErrHeader
	}
	addr, err := netip.ParseAddr(fields[2])
	if err != nil || addr.Is4() != (fields[1] == "TCP4") || addr.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%w: the address %q", ErrHeader, fields[2])
	}
	port, err := strconv.ParseUint(fields[4], 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%w: the port %q", ErrHeader, fields[4])
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), nil
}

func readV2(r *bufio.Reader) (netip.AddrPort, error) {
	var head [16]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return netip.AddrPort{}, err
	}
	if !bytes.Equal(head[:12], signature) || head[12]>>4 != 2 {
		return netip.AddrPort{}, ErrHeader
	}
	length := binary.BigEndian.Uint16(head[14:])
	if length > longestV2 {
		return netip.AddrPort{}, fmt.Errorf("%w: %d bytes of addresses", ErrHeader, length)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return netip.AddrPort{}, err
	}
	switch head[12] & 0xf {
	case 0: // LOCAL: the balancer looks whether this is alive
		return netip.AddrPort{}, nil
	case 1:
	default:
		return netip.AddrPort{}, fmt.Errorf("%w: command %d", ErrHeader, head[12]&0xf)
	}
	switch {
	case head[13] == 0x11 && len(body) >= 12:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(body[:4])), binary.BigEndian.Uint16(body[8:])), nil
	case head[13] == 0x21 && len(body) >= 36:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(body[:16])).Unmap(), binary.BigEndian.Uint16(body[32:])),
			nil
	case head[13] == 0x11 || head[13] == 0x21:
		return netip.AddrPort{}, fmt.Errorf("%w: too short for its addresses", ErrHeader)
	}
	return netip.AddrPort{}, nil // of a family without ports
}
