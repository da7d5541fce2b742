package options

import (
	"path/filepath"
	"slices"

	"github.com/barque/barque/edge/gateway"
	"github.com/barque/barque/membership/enroll"
)

// DefaultGateway are the ports of the gateway.
func DefaultGateway() gateway.Settings {
	return gateway.Settings{HTTPPort: 80, HTTPSPort: 443, Ports: []uint16{80, 443}, HTTP3: true}
}

func (o *Options) checkGateway() error {
	g := &o.Gateway
	if g.HTTPPort == 0 && g.HTTPSPort == 0 { // not of a command
		*g = DefaultGateway()
	}
	if g.HTTPPort == g.HTTPSPort {
		return enroll.WrongOption("--gateway-http-port and --gateway-https-port are both %d: want two ports",
			g.HTTPPort)
	}
	ports := append([]uint16{g.HTTPPort, g.HTTPSPort}, g.Ports...)
	for _, own := range []uint16{o.APIPort, o.PeerPort, o.KubeletPort, o.GossipPort} {
		if own != 0 && slices.Contains(ports, own) {
			return enroll.WrongOption(
				"port %d is the node's own: choose others with --gateway-http-port, --gateway-https-port and --gateway-ports", own)
		}
	}
	if o.GatewayAccessLog != "" && !filepath.IsAbs(o.GatewayAccessLog) {
		return enroll.WrongOption("--gateway-access-log %q: want an absolute path", o.GatewayAccessLog)
	}
	return nil
}
