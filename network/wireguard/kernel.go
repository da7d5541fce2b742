package wireguard

import (
	"net"
	"net/netip"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/barque/barque/network/nodeaddr"
)

// kernelLink is the kernel's own. It outlives the process.
type kernelLink struct{}

func (kernelLink) state() (state, error) {
	client, err := wgctrl.New()
	if err != nil {
		return state{}, err
	}
	defer client.Close()
	device, err := client.Device(LinkName)
	if err != nil {
		return state{}, err
	}
	s := state{private: Key(device.PrivateKey), port: uint16(device.ListenPort), peers: map[Key]peerState{}}
	for _, peer := range device.Peers {
		p := peerState{keepalive: peer.PersistentKeepaliveInterval, received: peer.ReceiveBytes,
			sent: peer.TransmitBytes}
		if peer.LastHandshakeTime.Unix() > 0 {
			p.handshake = peer.LastHandshakeTime
		}
		if peer.Endpoint != nil {
			p.endpoint = netip.AddrPortFrom(peer.Endpoint.AddrPort().Addr().Unmap(), uint16(peer.Endpoint.Port))
		}
		for _, allowed := range peer.AllowedIPs {
			p.allowed = append(p.allowed, nodeaddr.Prefix(&allowed))
		}
		s.peers[Key(peer.PublicKey)] = p
	}
	return s, nil
}

func (kernelLink) set(private *Key, port uint16, peers []change) error {
	client, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ConfigureDevice(LinkName, kernelConfig(private, port, peers))
}

// kernelConfig converts changes for the kernel's interface.
func kernelConfig(private *Key, port uint16, peers []change) wgtypes.Config {
	var config wgtypes.Config
	if private != nil {
		key := wgtypes.Key(*private)
		config.PrivateKey = &key
	}
	if port != 0 {
		listen := int(port)
		config.ListenPort = &listen
	}
	for _, c := range peers {
		if c.remove {
			config.Peers = append(config.Peers, wgtypes.PeerConfig{PublicKey: wgtypes.Key(c.key), Remove: true})
			continue
		}
		interval := keepalive
		peer := wgtypes.PeerConfig{
			PublicKey: wgtypes.Key(c.key), PersistentKeepaliveInterval: &interval, ReplaceAllowedIPs: c.replace,
		}
		if c.endpoint.IsValid() {
			peer.Endpoint = net.UDPAddrFromAddrPort(c.endpoint)
		}
		for _, allowed := range c.allowed {
			peer.AllowedIPs = append(peer.AllowedIPs, *nodeaddr.IPNet(allowed))
		}
		config.Peers = append(config.Peers, peer)
	}
	return config
}

func (kernelLink) start() error { return nil } // it does when it is up

func (kernelLink) alive() bool {
	link, err := nodeaddr.LinkNamed(LinkName)
	return err == nil && link != nil && link.Type() == "wireguard"
}

func (kernelLink) close() {} // it goes on
