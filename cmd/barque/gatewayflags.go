package main

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/node/options"
)

// gatewayFlags are those of the gateway that need reading.
type gatewayFlags struct {
	on                    bool
	ports                 []string
	trusted, proxyHeaders []string
}

func addGatewayFlags(c *cobra.Command, o *options.Options, f *gatewayFlags) {
	flags := c.Flags()
	o.Gateway = options.DefaultGateway()
	flags.BoolVar(&f.on, "gateway", true,
		"run the gateway of Ingresses and of the Gateway API on this node; it opens a port when a route or listener needs it")
	flags.Uint16Var(&o.Gateway.HTTPPort, "gateway-http-port", o.Gateway.HTTPPort,
		"port of Ingresses without TLS, at this node's addresses; give it to all nodes")
	flags.Uint16Var(&o.Gateway.HTTPSPort, "gateway-https-port", o.Gateway.HTTPSPort,
		"port of Ingresses with TLS; give it to all nodes")
	flags.StringSliceVar(&f.ports, "gateway-ports", []string{"80", "443"},
		"ports that listeners of Gateways may have at the nodes' addresses; give it to all nodes")
	flags.BoolVar(&o.Gateway.HTTP3, "gateway-http3", o.Gateway.HTTP3,
		"serve HTTP/3, too, at the UDP ports of listeners of HTTPS; give it to all nodes")
	flags.StringSliceVar(&f.trusted, "gateway-trusted-proxies", nil,
		"ranges of proxies before the gateway, whose X-Forwarded-For and X-Forwarded-Proto count; give it to all nodes")
	flags.StringSliceVar(&f.proxyHeaders, "gateway-proxy-protocol", nil,
		"ranges of load balancers that name their clients by the PROXY protocol; their connections must begin with it")
	flags.StringVar(&o.GatewayAccessLog, "gateway-access-log", "",
		"file for a line of JSON for each request to the gateway of this node; it is rotated at 100 MB")
}

func (f *gatewayFlags) complete(o *options.Options) error {
	o.NoGateway = !f.on
	o.Gateway.Ports = nil
	for _, text := range f.ports {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("--gateway-ports %q: want ports from 1 to 65535", text)
		}
		o.Gateway.Ports = append(o.Gateway.Ports, uint16(port))
	}
	for _, list := range []struct {
		flag  string
		texts []string
		into  *[]netip.Prefix
	}{{"gateway-trusted-proxies", f.trusted, &o.Gateway.TrustedHops},
		{"gateway-proxy-protocol", f.proxyHeaders, &o.Gateway.Balancers}} {
		for _, text := range list.texts {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("--%s %q: want a range such as 192.0.2.0/24", list.flag, text)
			}
			*list.into = append(*list.into, prefix.Masked())
		}
	}
	return nil
}
