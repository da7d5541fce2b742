package wireguard

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/network/nodeaddr"
)

// Want is the wanted state of the link.
type Want struct {
	Port uint16
	// Shares are this node's parts of the pod network. The first address of each is the link's own.
	Shares []netip.Prefix
	// MTU of the links below, and Overhead the part subtracted from it.
	MTU, Overhead int
	Peers         []Peer
}

// state is the actual state of the link.
type state struct {
	private Key
	port    uint16
	peers   map[Key]peerState
}

// peerState is the link's state of a peer.
type peerState struct {
	endpoint       netip.AddrPort
	allowed        []netip.Prefix
	keepalive      time.Duration
	handshake      time.Time
	received, sent int64
}

// change of one peer.
type change struct {
	key    Key
	remove bool
	// The wanted state of the peer, unless it is removed.
	endpoint netip.AddrPort // not valid: it stays
	allowed  []netip.Prefix // if they replace the present ones
	replace  bool
}

// changes lead from the actual state of the link to the wanted one. Correct peers stay, with their
// keys. Removals come first: shares may pass from one key to another. set has the endpoints that
// the link was given last. If it has another one, the peer has sent from there, and is answered
// there.
func changes(have map[Key]peerState, set map[Key]netip.AddrPort, want []Peer) []change {
	wanted := map[Key]peerState{}
	var order []Key
	for _, peer := range want {
		key := peer.Endpoint.PublicKey
		if _, twice := wanted[key]; !twice {
			order = append(order, key)
		}
		allowed := slices.Clone(peer.Shares)
		slices.SortFunc(allowed, netip.Prefix.Compare)
		wanted[key] = peerState{endpoint: netip.AddrPortFrom(peer.Endpoint.Address, peer.Endpoint.Port),
			allowed: allowed}
	}
	var removed, changed []change
	for key, peer := range have {
		w, stays := wanted[key]
		if !stays {
			removed = append(removed, change{key: key, remove: true})
			continue
		}
		slices.SortFunc(peer.allowed, netip.Prefix.Compare)
		have[key] = peer
		if peer.endpoint.IsValid() && set[key] == w.endpoint {
			w.endpoint = netip.AddrPort{}
		}
		if (!w.endpoint.IsValid() || peer.endpoint == w.endpoint) && slices.Equal(peer.allowed, w.allowed) &&
			peer.keepalive == keepalive {
			delete(wanted, key)
		} else {
			wanted[key] = w
		}
	}
	for _, key := range order {
		if w, ok := wanted[key]; ok {
			c := change{key: key, endpoint: w.endpoint, replace: true, allowed: w.allowed}
			if peer, there := have[key]; there && slices.Equal(peer.allowed, w.allowed) {
				c.replace, c.allowed = false, nil
			}
			changed = append(changed, c)
		}
	}
	return append(removed, changed...)
}

// backend is one of the two that can make the link.
type backend interface {
	state() (state, error)
	// set gives the link its key and its port, where they are not nil or 0, and changes peers.
	set(private *Key, port uint16, peers []change) error
	// start lets packets pass.
	start() error
	// alive tells whether the link is still its own.
	alive() bool
	// close ends the parts that end with the process.
	close()
}

// Device keeps the link as wanted. Its methods may be called from any goroutine.
type Device struct {
	logger *slog.Logger

	mu      sync.Mutex
	private Key
	backend backend // nil while there is none
	names   map[Key]string
	set     map[Key]netip.AddrPort // endpoints that the link was given last
}

// New makes a Device with a private key. It touches nothing on the machine.
func New(private Key, logger *slog.Logger) *Device {
	return &Device{private: private, logger: logger}
}

// Apply makes the link, with its peers, as wanted, and returns its index.
func (d *Device) Apply(want Want) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	index, err := d.apply(want)
	if err != nil {
		return 0, fmt.Errorf("wireguard: %w", err)
	}
	return index, nil
}

func (d *Device) apply(want Want) (int, error) {
	if d.backend != nil && !d.backend.alive() {
		d.backend.close()
		d.backend, d.set = nil, nil
	}
	mtu := want.MTU - want.Overhead
	if d.backend == nil {
		opened, err := d.open(mtu)
		if err != nil {
			return 0, err
		}
		d.backend = opened
	}
	if err := d.configure(want); err != nil {
		return 0, err
	}
	link, err := netlink.LinkByName(LinkName)
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", LinkName, err)
	}
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return 0, fmt.Errorf("give the link %s an MTU of %d: %w", LinkName, mtu, err)
		}
	}
	if err := nodeaddr.Assign(link, nodeaddr.Firsts(want.Shares)); err != nil {
		return 0, err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return 0, fmt.Errorf("bring the link %s up (UDP port %d must be free): %w", LinkName, want.Port, err)
		}
	}
	if err := d.backend.start(); err != nil {
		return 0, fmt.Errorf("start the link %s (UDP port %d must be free): %w", LinkName, want.Port, err)
	}
	return link.Attrs().Index, nil
}

// configure changes key, port and peers where they are wrong.
func (d *Device) configure(want Want) error {
	have, err := d.backend.state()
	if err != nil {
		return fmt.Errorf("read what the link %s has: %w", LinkName, err)
	}
	var private *Key
	if have.private != d.private {
		private = &d.private
	}
	port := want.Port
	if have.port == port {
		port = 0
	}
	d.names = map[Key]string{}
	given := map[Key]netip.AddrPort{}
	for _, peer := range want.Peers {
		d.names[peer.Endpoint.PublicKey] = peer.Node
		given[peer.Endpoint.PublicKey] = netip.AddrPortFrom(peer.Endpoint.Address, peer.Endpoint.Port)
	}
	peers := changes(have.peers, d.set, want.Peers)
	if private == nil && port == 0 && len(peers) == 0 {
		d.set = given
		return nil
	}
	if err := d.backend.set(private, port, peers); err != nil {
		return fmt.Errorf("set up the link %s (UDP port %d must be free): %w", LinkName, want.Port, err)
	}
	d.set = given
	return nil
}

// open makes the link, in the kernel if possible, or takes over the existing one.
func (d *Device) open(mtu int) (backend, error) {
	link, err := nodeaddr.LinkNamed(LinkName)
	if err != nil {
		return nil, err
	}
	if link != nil && link.Type() != "wireguard" {
		if err := netlink.LinkDel(link); err != nil {
			return nil, fmt.Errorf("replace the link %s: %w", LinkName, err)
		}
		link = nil
	}
	if link != nil {
		return kernelLink{}, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = LinkName, mtu
	err = netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if err == nil {
		return kernelLink{}, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("make the link %s: %w", LinkName, err)
	}
	opened, err := openTUN(mtu, d.logger)
	if err != nil {
		return nil,
			fmt.Errorf(
				"make the link %s (this kernel has no WireGuard: modprobe wireguard; without it /dev/net/tun is needed: modprobe tun): %w", LinkName, err)
	}
	d.logger.Info(
		"wireguard: this kernel has none, so this process encrypts: it costs more CPU time, and stops with Barque",
		"link", LinkName)
	return opened, nil
}

// Remove removes the link and all that leads through it.
func (d *Device) Remove() error {
	d.Close()
	return Remove()
}

// Close ends the parts that end with the process.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.backend != nil {
		d.backend.close()
	}
	d.backend, d.names, d.set = nil, nil, nil
}

// Seen returns the link's state of its peers, by their names; nothing without a link.
func (d *Device) Seen() ([]Seen, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.backend == nil {
		return nil, nil
	}
	have, err := d.backend.state()
	if err != nil {
		return nil, fmt.Errorf("wireguard: read what the link %s has: %w", LinkName, err)
	}
	var all []Seen
	for key, peer := range have.peers {
		name := d.names[key]
		if name == "" {
			continue // it is about to go
		}
		s := Seen{Node: name, Handshake: peer.handshake, Received: peer.received, Sent: peer.sent}
		if peer.endpoint.IsValid() {
			s.Endpoint = peer.endpoint.String()
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Seen) int { return cmp.Compare(a.Node, b.Node) })
	return all, nil
}

// Remove removes the link. A missing link is no error.
func Remove() error {
	if err := nodeaddr.RemoveLink(LinkName); err != nil {
		return fmt.Errorf("wireguard: %w", err)
	}
	return nil
}

// Try tells, in a network namespace that may be changed, how this machine would do it.
func Try() string {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = LinkName
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if err == nil {
		return "the kernel has it"
	}
	if _, missing := os.Stat("/dev/net/tun"); missing == nil {
		return "the kernel has none (modprobe wireguard): Barque would encrypt in its own process"
	}
	return "the kernel has none (modprobe wireguard), and no /dev/net/tun: --overlay wireguard cannot be used"
}
