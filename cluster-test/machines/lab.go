package machines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/osthread"
)

// Lab is a switch and the machines that are plugged into it. Its methods may be called by several
// goroutines.
type Lab struct {
	dir, binary string
	net         netns.NsHandle // the switch's
	links       *netlink.Handle
	home        *Segment

	mu       sync.Mutex
	machines []*Machine
	segments int // beside home
	plugs    int // how many there have been, for the names of their interfaces
}

// Segment is a layer-2 network of its own. A router connects it with the others.
type Segment struct {
	lab     *Lab
	bridge  netlink.Link
	gateway netip.Prefix // the router's address, and the range of all machines
}

const switchName = "switch"

// New makes a lab without machines. Its files are below the directory. The binary becomes the
// command `barque` of each machine. The gateway is the switch's own address, and its prefix the
// range of all machines: their default route.
func New(dir, binary string, gateway netip.Prefix) (_ *Lab, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("machines of their own network take root")
	}
	l := &Lab{dir: dir, binary: binary, net: netns.None()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	err = osthread.Do(func() error {
		l.net, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a network: %w", err)
	}
	if l.links, err = linksIn(l.net); err != nil {
		return nil, err
	}
	l.home, err = l.newSegment(switchName, gateway)
	return l, err
}

// NewSegment makes one more layer-2 network. The gateway is its router's address, and its prefix
// the range of the machines in it: their default route.
func (l *Lab) NewSegment(gateway netip.Prefix) (*Segment, error) {
	l.mu.Lock()
	l.segments++
	name := fmt.Sprintf("segment%d", l.segments)
	l.mu.Unlock()
	err := osthread.Do(func() error {
		if err := netns.Set(l.net); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
	if err != nil {
		return nil, fmt.Errorf("make a router: %w", err)
	}
	return l.newSegment(name, gateway)
}

func (l *Lab) newSegment(name string, gateway netip.Prefix) (*Segment, error) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := l.links.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("make a switch: %w", err)
	}
	link, err := l.links.LinkByName(name)
	if err != nil {
		return nil, err
	}
	return &Segment{lab: l, bridge: link, gateway: gateway}, configure(l.links, link, gateway, netip.Addr{})
}

// LoseRouter switches the segment's router off: the machines in it reach each other, and no others.
// Packets from elsewhere are dropped without a word, and so are those of machines that still know
// the router's hardware address.
func (s *Segment) LoseRouter() error {
	nowhere := &netlink.Route{Dst: ipNet(s.gateway.Masked()), Type: unix.RTN_BLACKHOLE}
	err := s.lab.links.AddrDel(s.bridge, &netlink.Addr{IPNet: ipNet(s.gateway)})
	if err == nil {
		err = errors.Join(s.lab.links.RouteAdd(nowhere), s.forward("0"))
	}
	if err != nil {
		return fmt.Errorf("switch the router %s off: %w", s.gateway.Addr(), err)
	}
	return nil
}

// ReturnRouter switches the router on again.
func (s *Segment) ReturnRouter() error {
	nowhere := &netlink.Route{Dst: ipNet(s.gateway.Masked()), Type: unix.RTN_BLACKHOLE}
	err := s.lab.links.RouteDel(nowhere)
	if err == nil {
		err = errors.Join(configure(s.lab.links, s.bridge, s.gateway, netip.Addr{}), s.forward("1"))
	}
	if err != nil {
		return fmt.Errorf("switch the router %s on: %w", s.gateway.Addr(), err)
	}
	return nil
}

// forward reports whether the router takes packets of the segment for elsewhere.
func (s *Segment) forward(value string) error {
	return osthread.Do(func() error {
		if err := netns.Set(s.lab.net); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/conf/"+s.bridge.Attrs().Name+"/forwarding", []byte(value), 0o644)
	})
}

// Close switches all machines off and removes their leftovers but for their files.
func (l *Lab) Close() error {
	l.mu.Lock()
	all := slices.Clone(l.machines)
	l.mu.Unlock()
	var err error
	for _, m := range all {
		err = errors.Join(err, m.Off())
	}
	if l.links != nil {
		l.links.Close()
	}
	if l.net.IsOpen() {
		err = errors.Join(err, l.net.Close())
	}
	return err
}

// Dial connects from the switch. The address is one of numbers.
func (l *Lab) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	// The socket is made, and stays, in the network of the thread.
	err = osthread.Do(func() error {
		if err := netns.Set(l.net); err != nil {
			return err
		}
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// plug connects a machine's network with the switch by an interface eth0 of the address. Its
// network card is always the same: the others remember it while the machine is off.
func (s *Segment) plug(pid int, card net.HardwareAddr, address netip.Prefix) (port netlink.Link, err error) {
	l := s.lab
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plugs++
	name := fmt.Sprintf("port%d", l.plugs)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = name, s.bridge.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: card, PeerNamespace: netlink.NsPid(pid)}
	if err := l.links.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("plug in: %w", err)
	}
	if port, err = l.links.LinkByName(name); err != nil {
		return nil, err
	}
	if err := l.links.LinkSetUp(port); err != nil {
		return port, fmt.Errorf("plug in: %w", err)
	}
	return port, readdress(pid, address, s.gateway.Addr())
}

// unplug takes the cable out. The kernel takes its time to remove the network of a machine that is
// off; until then it would go on to answer for the address.
func (l *Lab) unplug(port netlink.Link) error {
	if port == nil {
		return nil
	}
	if err := l.links.LinkDel(port); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) &&
		!errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("unplug: %w", err)
	}
	return nil
}

// linksIn opens a handle that lists and changes the interfaces of a network. A thread of this
// process is there meanwhile.
func linksIn(network netns.NsHandle) (links *netlink.Handle, err error) {
	err = osthread.Do(func() error {
		links, err = netlink.NewHandleAt(network)
		return err
	})
	return links, err
}

// readdress gives the interface of a machine its only address, and its routes.
func readdress(pid int, address netip.Prefix, gateway netip.Addr) error {
	handle, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer handle.Close()
	links, err := linksIn(handle)
	if err != nil {
		return err
	}
	defer links.Close()
	lo, err := links.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := links.LinkSetUp(lo); err != nil {
		return err
	}
	eth0, err := links.LinkByName("eth0")
	if err != nil {
		return err
	}
	old, err := links.AddrList(eth0, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for i := range old {
		if err := links.AddrDel(eth0, &old[i]); err != nil {
			return err
		}
	}
	return configure(links, eth0, address, gateway)
}

// configure gives an interface an address, and a default route if there is a gateway.
func configure(links *netlink.Handle, link netlink.Link, address netip.Prefix, gateway netip.Addr) error {
	addr := &netlink.Addr{IPNet: ipNet(address)}
	if err := errors.Join(links.AddrReplace(link, addr), links.LinkSetUp(link)); err != nil {
		return fmt.Errorf("give %s the address %s: %w", link.Attrs().Name, address, err)
	}
	if !gateway.IsValid() {
		return nil
	}
	everything := ipNet(netip.MustParsePrefix("0.0.0.0/0"))
	if err := links.RouteReplace(
		&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice(), Dst: everything}); err != nil {
		return fmt.Errorf("default route by %s: %w", gateway, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// sweepCgroups removes the cgroups of pods below a root when all of their processes are dead.
func sweepCgroups(root string) error {
	var err error
	for _, pattern := range []string{"/sys/fs/cgroup" + root, "/sys/fs/cgroup/*" + root} {
		found, _ := filepath.Glob(pattern) // the pattern is right
		for _, dir := range found {
			err = errors.Join(err, removeGroups(dir))
		}
	}
	return err
}

func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, unix.Rmdir(dir))
}
