package network

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/wireguard"
)

// tunnel is the node's WireGuard, once its key is known.
type tunnel struct {
	mu     sync.Mutex
	device *wireguard.Device // nil until then
	public wireguard.Key
}

// wishOf returns the nodes that a mode asks WireGuard for.
func wishOf(mode overlay.Mode) wireguard.Wish {
	switch mode {
	case overlay.AutoWireGuard:
		return wireguard.Elsewhere
	case overlay.WireGuard:
		return wireguard.Everywhere
	}
	return wireguard.Nowhere
}

// endpoint returns the node's own, which others may ask for though this node does not. It is not
// valid without a key.
func (t *tunnel) endpoint(c *Config) (wireguard.Endpoint, error) {
	if c.WireGuard.KeyFile == "" || c.Overlay.Mode == overlay.None {
		return wireguard.Endpoint{}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.device == nil {
		private, err := wireguard.LoadKey(c.WireGuard.KeyFile)
		if err != nil {
			return wireguard.Endpoint{}, err
		}
		if t.public, err = private.Public(); err != nil {
			return wireguard.Endpoint{}, err
		}
		t.device = wireguard.New(private, c.Logger)
	}
	return wireguard.Endpoint{PublicKey: t.public, Address: c.Addresses.Primary(), Port: c.WireGuard.Port,
		To: wishOf(c.Overlay.Mode)}, nil
}

// loaded returns the device, or nil.
func (t *tunnel) loaded() *wireguard.Device {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.device
}

// Apply makes the link; see wireguard.Device. There are peers only with a key.
func (t *tunnel) Apply(want wireguard.Want) (int, error) { return t.loaded().Apply(want) }

// Remove removes the link.
func (t *tunnel) Remove() error {
	if device := t.loaded(); device != nil {
		return device.Remove()
	}
	return wireguard.Remove()
}

// Close ends the parts that end with the process.
func (t *tunnel) Close() {
	if device := t.loaded(); device != nil {
		device.Close()
	}
}

// Describe and Collect make the tunnel's metrics those of the node.
func (t *tunnel) Describe(to chan<- *prometheus.Desc) { new(wireguard.Device).Describe(to) }

// Collect implements prometheus.Collector.
func (t *tunnel) Collect(to chan<- prometheus.Metric) {
	if device := t.loaded(); device != nil {
		device.Collect(to)
	}
}

// Tunnels returns the state of the nodes reached by WireGuard.
func (n *Network) Tunnels() ([]wireguard.Seen, error) {
	if device := n.tunnel.loaded(); device != nil {
		return device.Seen()
	}
	return nil, nil
}
