// Package overlay carries packets between pods of nodes without a common layer-2 network: in VXLAN
// (RFC 7348), from node to node. Package wireguard does so with encryption.
//
// A node publishes its endpoint by an annotation of its Node object (Endpoint). Package routes
// decides which nodes use the overlay. This package owns the link "barque-vxlan", with its
// addresses, neighbours and forwarding entries. Nothing is learned from packets: the Node objects
// are the only source. Everything happens in the network namespace of the calling thread.
package overlay

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Mode selects the nodes that are reached through an overlay, and its type.
type Mode string

const (
	// Auto takes VXLAN to nodes that are in another layer-2 network.
	Auto Mode = "auto"
	// Always takes VXLAN to all nodes.
	Always Mode = "vxlan"
	// AutoWireGuard takes WireGuard to nodes that are in another layer-2 network.
	AutoWireGuard Mode = "auto-wireguard"
	// WireGuard takes WireGuard to all nodes.
	WireGuard Mode = "wireguard"
	// None uses no overlay.
	None Mode = "none"
)

// Modes are all of them.
var Modes = []Mode{Auto, Always, AutoWireGuard, WireGuard, None}

// Defaults of a Config. The port is that of Linux and other overlays; IANA's 4789 is often used by
// the network below.
const (
	DefaultVNI  = 4242
	DefaultPort = 8472
)

// Config is common to the nodes of a cluster, except for the mode.
type Config struct {
	Mode Mode
	VNI  uint32
	Port uint16
}

// Check validates the configuration.
func (c Config) Check() error {
	switch {
	case !slices.Contains(Modes, c.Mode):
		return fmt.Errorf("overlay %q: want auto, vxlan, auto-wireguard, wireguard or none", c.Mode)
	case c.VNI == 0 || c.VNI >= 1<<24:
		return fmt.Errorf("VXLAN network identifier %d: want a number from 1 to 16777215", c.VNI)
	case c.Port == 0:
		return fmt.Errorf("VXLAN port 0: want a port from 1 to 65535")
	}
	return nil
}

// Annotation of a Node holds its Endpoint, or the mark of none.
const (
	Annotation = "network.barque.io/vxlan"
	noEndpoint = "none"
)

// Endpoint is how a node is reached through the overlay.
type Endpoint struct {
	// Address is the node's own, outside the overlay.
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	VNI     uint32     `json:"vni"`
	Port    uint16     `json:"port"`
	// Always asks all nodes to take the overlay to this one.
	Always bool `json:"always,omitempty"`
}

// Endpoint returns that of this node; it is not valid when the node takes no VXLAN.
func (c Config) Endpoint(node string, address netip.Addr) Endpoint {
	if c.Mode != Auto && c.Mode != Always {
		return Endpoint{}
	}
	return Endpoint{Address: address, MAC: macOf(node).String(), VNI: c.VNI, Port: c.Port, Always: c.Mode == Always}
}

// IsValid reports whether there is an endpoint.
func (e Endpoint) IsValid() bool { return e.Address.IsValid() }

// String returns the value of the annotation.
func (e Endpoint) String() string {
	if !e.IsValid() {
		return noEndpoint
	}
	text, _ := json.Marshal(e) // every value has a form in JSON
	return string(text)
}

// EndpointOf reads a node's annotation. A node that has not announced itself, or that has no
// overlay, has no valid endpoint.
func EndpointOf(node *corev1.Node) (e Endpoint, announced bool, err error) {
	text, announced := node.Annotations[Annotation]
	if !announced || text == noEndpoint {
		return Endpoint{}, announced, nil
	}
	err = json.Unmarshal([]byte(text), &e)
	if err == nil && !e.Address.IsValid() {
		err = fmt.Errorf("it has no address")
	}
	if err == nil {
		_, err = parseMAC(e.MAC)
	}
	if err != nil {
		return Endpoint{}, true, fmt.Errorf("annotation %s of node %s: %w", Annotation, node.Name, err)
	}
	return e, true, nil
}

// macOf derives the address of a node's link from the node's name, so that it is the same after
// each start.
func macOf(node string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("barque-vxlan/" + node))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02 // of one link, and given by us
	return mac
}

func parseMAC(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	if err == nil && (len(mac) != 6 || mac[0]&1 != 0) {
		err = fmt.Errorf("%s is no address of one Ethernet link", text)
	}
	return mac, err
}

// Overhead is VXLAN's size in each packet: an IP header, 8 bytes of UDP, 8 of VXLAN and 14 of
// Ethernet.
func Overhead(address netip.Addr) int {
	if address.Is6() {
		return 70
	}
	return 50
}

// Peer is a node that is reached through the overlay.
type Peer struct {
	Node     string
	Endpoint Endpoint
	// Gateways are the addresses that routes to the node's pods name: one of each family of its
	// shares.
	Gateways []netip.Addr
}

// Gateway4 is the IPv4 gateway to a share of the pod network: its first address, which no pod has.
func Gateway4(share netip.Prefix) netip.Addr { return share.Masked().Addr() }

// Gateway6 is the IPv6 gateway to the node with the endpoint: the link-local address of its MAC
// (RFC 4291, appendix A).
func (e Endpoint) Gateway6() netip.Addr {
	mac, err := parseMAC(e.MAC)
	if err != nil {
		return netip.Addr{}
	}
	return netip.AddrFrom16(
		[16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4],
			15: mac[5]})
}
