package overlay

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/netdump"
	"github.com/barque/barque/network/nodeaddr"
)

// LinkName is the name of the link.
const LinkName = "barque-vxlan"

// Device is the wanted state of the link.
type Device struct {
	Own Endpoint
	// Shares are this node's parts of the pod network. The first address of each is the link's own,
	// so that answers to this node's packets come back through the overlay.
	Shares []netip.Prefix
	// MTU of the links below; the link's own is smaller.
	MTU   int
	Peers []Peer
}

// Apply makes the link, with its entries for the peers, as wanted, and returns its index. Correct
// parts stay, so that a restart of Barque loses no packet.
func Apply(want Device) (int, error) {
	link, err := ensureLink(want)
	if err != nil {
		return 0, fmt.Errorf("overlay: %w", err)
	}
	err = errors.Join(nodeaddr.Assign(link, nodeaddr.Firsts(want.Shares)), ensurePeers(link, want.Peers))
	if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return 0, fmt.Errorf("overlay: %w", err)
	}
	return link.Attrs().Index, nil
}

// Remove removes the link and all routes through it. A missing link is no error.
func Remove() error {
	if err := nodeaddr.RemoveLink(LinkName); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	return nil
}

func ensureLink(want Device) (netlink.Link, error) {
	mac, err := parseMAC(want.Own.MAC)
	if err != nil {
		return nil, err
	}
	mtu := want.MTU - Overhead(want.Own.Address)
	link, err := nodeaddr.LinkNamed(LinkName)
	if err != nil {
		return nil, err
	}
	if link != nil && !isRight(link, want.Own, mac) {
		if err := netlink.LinkDel(link); err != nil {
			return nil, fmt.Errorf("replace the link %s: %w", LinkName, err)
		}
		link = nil
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = LinkName, mac, mtu
		err := netlink.LinkAdd(&netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: int(want.Own.VNI), Port: int(want.Own.Port), SrcAddr: want.Own.Address.AsSlice(),
			Learning: false, UDP6ZeroCSumTx: false, UDP6ZeroCSumRx: false,
		})
		if err != nil {
			return nil,
				fmt.Errorf(
					"make the link %s (the kernel needs CONFIG_VXLAN: modprobe vxlan; UDP port %d must be free): %w",
					LinkName, want.Own.Port, err)
		}
		if link, err = netlink.LinkByName(LinkName); err != nil {
			return nil, err
		}
		if brokenChecksums(kernelRelease()) {
			if err := withoutChecksumOffload(LinkName); err != nil {
				return nil, err
			}
		}
	}
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("give the link %s an MTU of %d: %w", LinkName, mtu, err)
		}
	}
	return link, nil
}

// isRight reports whether an existing link is as wanted.
func isRight(link netlink.Link, own Endpoint, mac net.HardwareAddr) bool {
	v, ok := link.(*netlink.Vxlan)
	return ok && v.VxlanId == int(own.VNI) && v.Port == int(own.Port) && !v.Learning &&
		v.SrcAddr.Equal(own.Address.AsSlice()) && v.HardwareAddr.String() == mac.String()
}

// entry is a neighbour or a forwarding entry: IP is at MAC, or MAC is behind IP.
type entry struct {
	bridge bool
	mac    string
	ip     netip.Addr
}

func entriesOf(peers []Peer) map[entry]bool {
	entries := map[entry]bool{}
	for _, peer := range peers {
		entries[entry{true, peer.Endpoint.MAC, peer.Endpoint.Address}] = true
		for _, gateway := range peer.Gateways {
			entries[entry{false, peer.Endpoint.MAC, gateway}] = true
		}
	}
	return entries
}

// ensurePeers adds missing entries before it removes wrong ones.
func ensurePeers(link netlink.Link, peers []Peer) error {
	wanted := entriesOf(peers)
	missing := maps.Clone(wanted)
	var wrong []netlink.Neigh
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		have, err := netdump.Whole(
			func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, family) })
		if err != nil {
			return fmt.Errorf("list the neighbours at %s: %w", LinkName, err)
		}
		for _, neighbour := range have {
			ip, ok := netip.AddrFromSlice(neighbour.IP)
			if !ok || ip.IsMulticast() {
				continue
			}
			e := entry{family == unix.AF_BRIDGE, neighbour.HardwareAddr.String(), ip.Unmap()}
			switch {
			case wanted[e] && neighbour.State&netlink.NUD_PERMANENT != 0:
				delete(missing, e)
			case !wanted[e]:
				wrong = append(wrong, neighbour)
			}
		}
	}
	changed := map[entry]bool{} // by MAC behind, or IP at: adding replaces these
	for e := range missing {
		mac, err := parseMAC(e.mac)
		if err != nil {
			return err
		}
		if err := netlink.NeighSet(kernelEntry(link, e, mac)); err != nil {
			return fmt.Errorf("lead to %v at %s: %w", e.ip, LinkName, err)
		}
		changed[e.subject()] = true
	}
	for _, neighbour := range wrong {
		ip, _ := netip.AddrFromSlice(neighbour.IP)
		e := entry{neighbour.Family == unix.AF_BRIDGE, neighbour.HardwareAddr.String(), ip.Unmap()}
		if changed[e.subject()] {
			continue // replaced
		}
		if e.bridge {
			neighbour.Flags |= netlink.NTF_SELF
		}
		if err := netlink.NeighDel(&neighbour); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget %v at %s: %w", e.ip, LinkName, err)
		}
	}
	return nil
}

// subject is an entry reduced to its key.
func (e entry) subject() entry {
	if e.bridge {
		e.ip = netip.Addr{}
	} else {
		e.mac = ""
	}
	return e
}

func kernelEntry(link netlink.Link, e entry, mac net.HardwareAddr) *netlink.Neigh {
	neighbour := &netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST,
		IP: e.ip.AsSlice(), HardwareAddr: mac,
	}
	switch {
	case e.bridge:
		neighbour.Family, neighbour.Flags, neighbour.Type = unix.AF_BRIDGE, netlink.NTF_SELF, 0
	case e.ip.Is6():
		neighbour.Family = unix.AF_INET6
	}
	return neighbour
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// brokenChecksums reports kernels that get the checksums of translated and encapsulated packets
// wrong: those before 5.7.
func brokenChecksums(release string) bool {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		minor = rest[:end]
	}
	x, errX := strconv.Atoi(major)
	y, errY := strconv.Atoi(minor)
	return errX == nil && errY == nil && (x < 5 || x == 5 && y < 7)
}

// withoutChecksumOffload makes the kernel compute checksums before packets go through the link.
func withoutChecksumOffload(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		rest [16]byte // of the kernel's union
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("turn off the checksum offload of %s: %w", link, errno)
	}
	return nil
}
