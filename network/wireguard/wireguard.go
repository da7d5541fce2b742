// Package wireguard carries packets between pods of different nodes encrypted and authenticated, in
// WireGuard: by the kernel if it can, otherwise by this process on a TUN device.
//
// A node publishes its public key by an annotation of its Node object (Endpoint). Package routes
// decides which pairs of nodes use it. This package owns the link "barque-wg", with its key, its
// addresses and its peers. A peer may send only from its node's shares of the pod network.
// Everything happens in the network namespace of the calling thread.
//
// A link of the kernel stays when the process ends. A TUN device goes with the process: until
// Barque runs again, the node's pods do not reach those of other nodes by it.
package wireguard

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/atomicfile"
)

// LinkName is the name of the link.
const LinkName = "barque-wg"

// DefaultPort is WireGuard's usual one.
const DefaultPort = 51820

// Key is a public or a private key (RFC 7748). Its text is base64, as that of other tools.
type Key [32]byte

// String is the key's text.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText makes the key a string in JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (k *Key) UnmarshalText(text []byte) error {
	data, err := base64.StdEncoding.DecodeString(string(text))
	if err == nil && len(data) != len(k) {
		err = fmt.Errorf("it has %d bytes, want %d", len(data), len(k))
	}
	if err != nil {
		return fmt.Errorf("a WireGuard key: %w", err)
	}
	copy(k[:], data)
	return nil
}

// LoadKey reads the node's private key, or makes one if there is none. After the file was deleted
// the next start makes another key.
func LoadKey(path string) (private Key, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err == nil {
		err = private.UnmarshalText([]byte(strings.TrimSpace(string(data))))
	}
	if err != nil {
		return Key{},
			fmt.Errorf("the node's WireGuard key %s (delete it, and a new one is made at the next start): %w", path,
				err)
	}
	return private.clamped(), nil
}

// clamped is the key as all of its users take it: some bits of it count for nothing (RFC 7748).
func (k Key) clamped() Key {
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

func makeKey(path string) (Key, error) {
	made, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, err
	}
	key := Key(made.Bytes()).clamped()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Key{}, err
	}
	if err := atomicfile.Write(path, []byte(key.String()+"\n"), 0o600); err != nil {
		return Key{}, fmt.Errorf("keep the node's WireGuard key: %w", err)
	}
	return key, nil
}

// Public is the public key of a private one.
func (k Key) Public() (Key, error) {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return Key{}, err
	}
	return Key(private.PublicKey().Bytes()), nil
}

// Wish selects the nodes for which a node asks for WireGuard. One node of a pair is enough.
type Wish string

const (
	// Nowhere is a node's that takes this way when another node asks for it.
	Nowhere Wish = ""
	// Elsewhere are the nodes of other layer-2 networks.
	Elsewhere Wish = "elsewhere"
	// Everywhere are all nodes.
	Everywhere Wish = "everywhere"
)

// Annotation of a Node holds its Endpoint, or the mark of none.
const (
	Annotation = "network.barque.io/wireguard"
	noEndpoint = "none"
)

// Endpoint is how a node is reached.
type Endpoint struct {
	PublicKey Key `json:"publicKey"`
	// Address is the node's own, outside the tunnel.
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	To      Wish       `json:"to,omitempty"`
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

// EndpointOf reads a node's annotation. A node without one, or with the mark of none, has no valid
// endpoint.
func EndpointOf(node *corev1.Node) (e Endpoint, err error) {
	text, announced := node.Annotations[Annotation]
	if !announced || text == noEndpoint {
		return Endpoint{}, nil
	}
	err = json.Unmarshal([]byte(text), &e)
	switch {
	case err != nil:
	case !e.Address.IsValid() || e.Port == 0:
		err = errors.New("it has no address or no port")
	case e.PublicKey == Key{}:
		err = errors.New("it has no key")
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("annotation %s of node %s: %w", Annotation, node.Name, err)
	}
	return e, nil
}

// Overhead is WireGuard's size in each packet: an IP header, 8 bytes of UDP and 32 of its own.
func Overhead(address netip.Addr) int {
	if address.Is6() {
		return 80
	}
	return 60
}

// Peer is a node that is reached by this way.
type Peer struct {
	Node     string
	Endpoint Endpoint
	// Shares of the pod network are the addresses that it may send from, and is sent to.
	Shares []netip.Prefix
}

// Seen is the link's state of a peer.
type Seen struct {
	Node     string `json:"node"`
	Endpoint string `json:"endpoint,omitempty"`
	// Handshake is when both agreed on a key for the last time; zero when they never did. Nodes
	// that reach each other do so every two minutes.
	Handshake time.Time `json:"handshake,omitzero"`
	Received  int64     `json:"received"`
	Sent      int64     `json:"sent"`
}

// Stale reports a peer without a valid key: no packet passes.
func (s Seen) Stale(now time.Time) bool { return now.Sub(s.Handshake) > staleAfter }

// staleAfter is longer than the three minutes after which a key is not used any more.
const staleAfter = 4 * time.Minute

// keepalive is the interval of packets to a silent peer. So keys are renewed all the time, and an
// old one means that the peer is not reached.
const keepalive = 25 * time.Second
