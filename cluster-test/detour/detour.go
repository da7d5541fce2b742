// Package detour makes the network between nodes slow where the kernel has no means to: packets
// between the nodes go through this process, which keeps each packet for a while. All protocols are
// delayed alike, on connections that were there before, too; when the detour is closed the packets
// take the straight way again, at once.
//
// Each node's network namespace gets a tun device and a route through it to each of the other
// nodes' addresses.
package detour

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/osthread"
)

// End is a node: its network namespace and its address there.
type End struct {
	Namespace string
	Addr      netip.Addr
}

// Detour is the delay between some nodes.
type Detour struct {
	tuns    map[netip.Addr]*os.File
	delay   func(from, to netip.Addr) time.Duration
	running sync.WaitGroup
	done    chan struct{}
}

const (
	deviceName = "detour"
	mtu        = 1500
	// queued packets of one direction are kept; more are lost, as they are where a line is too
	// narrow.
	queued = 4096
)

// Open gives packets between the nodes the delay that delay returns, each way; a negative one loses
// the packet. It must not change the order of packets much: those of one direction stay in order.
// delay is called from many goroutines.
func Open(ends []End, delay func(from, to netip.Addr) time.Duration) (*Detour, error) {
	d := &Detour{tuns: make(map[netip.Addr]*os.File), delay: delay, done: make(chan struct{})}
	for _, e := range ends {
		tun, err := openTun(e)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("a detour in network namespace %s: %w", e.Namespace, err), d.Close())
		}
		d.tuns[e.Addr] = tun
	}
	for _, e := range ends {
		d.running.Go(func() { d.read(e.Addr) }) // ends when the file is closed
	}
	// The routes last: from then on packets come.
	for _, e := range ends {
		if err := route(e, ends); err != nil {
			return nil,
				errors.Join(fmt.Errorf("routes of the detour in network namespace %s: %w", e.Namespace, err), d.Close())
		}
	}
	return d, nil
}

// Close ends the detour. Packets on their way are lost.
func (d *Detour) Close() error {
	close(d.done)
	var err error
	for _, tun := range d.tuns {
		err = errors.Join(err, tun.Close()) // the device and its routes go with it
	}
	d.running.Wait()
	return err
}

func openTun(e End) (tun *os.File, err error) {
	err = osthread.InNetwork(e.Namespace, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq(deviceName)
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		tun = os.NewFile(uintptr(fd), "tun")
		return nil
	})
	return tun, err
}

// route sends the packets for the others through the device.
func route(e End, ends []End) error {
	return osthread.InNetwork(e.Namespace, func() error {
		link, err := netlink.LinkByName(deviceName)
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetMTU(link, mtu), netlink.LinkSetUp(link)); err != nil {
			return err
		}
		for _, other := range ends {
			if other.Addr == e.Addr {
				continue
			}
			to := &net.IPNet{IP: other.Addr.AsSlice(), Mask: net.CIDRMask(other.Addr.BitLen(), other.Addr.BitLen())}
			if err := netlink.RouteAdd(
				&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Src: e.Addr.AsSlice(),
					Scope: netlink.SCOPE_LINK}); err != nil {
				return err
			}
		}
		return nil
	})
}

// packet is one on its way.
type packet struct {
	data []byte
	due  time.Time
}

// read takes a node's packets and puts them into the line to their destination.
func (d *Detour) read(from netip.Addr) {
	lines := make(map[netip.Addr]chan packet)
	defer func() {
		for _, line := range lines {
			close(line)
		}
	}()
	const destination = 16 // offset in the IPv4 header
	for {
		data := make([]byte, mtu)
		n, err := d.tuns[from].Read(data)
		if err != nil {
			return // it was closed
		}
		if n < destination+4 || data[0]>>4 != 4 {
			continue
		}
		to, _ := netip.AddrFromSlice(data[destination : destination+4])
		out := d.tuns[to]
		by := d.delay(from, to)
		if out == nil || by < 0 {
			continue
		}
		if lines[to] == nil {
			line := make(chan packet, queued)
			lines[to] = line
			d.running.Go(func() { d.carry(line, out) }) // ends when read does
		}
		select {
		case lines[to] <- packet{data[:n], time.Now().Add(by)}:
		default:
		}
	}
}

func (d *Detour) carry(line <-chan packet, out *os.File) {
	timer := time.NewTimer(0) // brief: it is how slow the network is to be
	defer timer.Stop()
	for p := range line {
		if wait := time.Until(p.due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-d.done:
			}
		}
		_, _ = out.Write(p.data) // a device that is full or down loses packets, as any does
	}
}
