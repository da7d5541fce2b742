package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/path"
	"github.com/barque/barque/network/wireguard"
)

// Ports of nodes, unless flags say otherwise.
const (
	defaultAPIPort     = 6443
	defaultPeerPort    = 6444
	defaultGossipPort  = 7946
	defaultKubeletPort = 10250
)

// Roles that a machine can be checked for.
const (
	roleServer = "server"
	roleAgent  = "agent"
)

// ways are the machines to which `barque check` tries the way, and what this one would ask of them.
type ways struct {
	role                                         string
	peerPort, gossipPort, kubeletPort, vxlanPort uint16
	wireguardPort                                uint16
}

// bind adds the flags.
func (w *ways) bind(flags *pflag.FlagSet) {
	flags.StringVar(&w.role, "role", roleServer, "what this machine is to be, server or agent: they need different ports of the others")
	flags.Uint16Var(&w.peerPort, "peer-port", defaultPeerPort, "port of the store at the other machines")
	flags.Uint16Var(&w.gossipPort, "gossip-port", defaultGossipPort, "port of gossip at the other machines")
	flags.Uint16Var(&w.kubeletPort, "kubelet-port", defaultKubeletPort, "port of the kubelet at the other machines")
	flags.Uint16Var(&w.vxlanPort, "vxlan-port", overlay.DefaultPort, "UDP port of VXLAN at the other machines")
	flags.Uint16Var(&w.wireguardPort, "wireguard-port", wireguard.DefaultPort, "UDP port of WireGuard at the other machines")
}

// target is one that this machine is to be in a cluster with.
type target struct {
	host string
	api  uint16 // of a server; 0 of a machine of which that is not known
}

// parseTarget reads an address or a host name, or the URL of a server.
func parseTarget(text string) (target, error) {
	if !strings.Contains(text, "://") {
		host := strings.Trim(text, "[]")
		if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, ":/ ")) {
			return target{}, fmt.Errorf("%q: want the address or the host name of a machine, or https://HOST:6443 of a server", text)
		}
		return target{host: host}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return target{}, fmt.Errorf("%q: want https://HOST:6443 of a server", text)
	}
	m := target{host: u.Hostname(), api: uint16(defaultAPIPort)}
	if u.Port() != "" {
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || port == 0 {
			return target{}, fmt.Errorf("%q: want a port from 1 to 65535", text)
		}
		m.api = uint16(port)
	}
	return m, nil
}

// parse reads what the user has named.
func (w *ways) parse(c *cobra.Command, args []string) ([]target, error) {
	if w.role != roleServer && w.role != roleAgent {
		return nil, &usageError{c.CommandPath(), fmt.Errorf("--role %q: want server or agent", w.role)}
	}
	var machines []target
	for _, arg := range args {
		m, err := parseTarget(arg)
		if err != nil {
			return nil, &usageError{c.CommandPath(), err}
		}
		machines = append(machines, m)
	}
	return machines, nil
}

// ports are those of the machine that this one needs.
func (w *ways) ports(m target) []path.Port {
	var ports []path.Port
	if m.api != 0 {
		ports = append(ports, path.Port{Number: m.api, For: "the API"})
		if w.role == roleServer {
			ports = append(ports, path.Port{Number: w.peerPort, For: "the store"})
		}
	}
	ports = append(ports, path.Port{Number: w.gossipPort, For: "gossip"}, path.Port{Number: w.gossipPort, UDP: true, For: "gossip"})
	if w.role == roleServer {
		ports = append(ports, path.Port{Number: w.kubeletPort, For: "the kubelet, for logs, exec and metrics"})
	}
	return append(ports, path.Port{Number: w.vxlanPort, UDP: true, For: "VXLAN, between different layer-2 networks"},
		path.Port{Number: w.wireguardPort, UDP: true, For: "WireGuard, where a node asks for it"})
}

// lookupPatience bounds the look-up of a name.
const lookupPatience = 10 * time.Second

// addressOf returns an address of the machine that this one has a way to, if it has one to any.
func addressOf(ctx context.Context, host string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("it has no address")
	}
	if err != nil {
		return netip.Addr{}, err
	}
	for _, addr := range addrs {
		if _, err := nodeaddr.WayTo(addr.Unmap()); err == nil {
			return addr.Unmap(), nil
		}
	}
	return addrs[0].Unmap(), nil
}

// explore asks all machines at the same time.
func (w *ways) explore(ctx context.Context, machines []target) []check.Finding {
	found := make([][]check.Finding, len(machines))
	var asking sync.WaitGroup
	for i, m := range machines {
		asking.Go(func() { found[i] = w.exploreOne(ctx, m) }) // ends with its questions
	}
	asking.Wait()
	var all []check.Finding
	for _, findings := range found {
		all = append(all, findings...)
	}
	return all
}

func (w *ways) exploreOne(ctx context.Context, m target) []check.Finding {
	name := "path to " + m.host
	addr, err := addressOf(ctx, m.host)
	if err != nil {
		return []check.Finding{check.Failed(name, err.Error(), "give its address, or mend the name in DNS or /etc/hosts")}
	}
	found, err := path.Explore(ctx, addr, w.ports(m))
	if err != nil {
		return []check.Finding{check.Failed(name, err.Error(), fmt.Sprintf("run it as root, and give this machine a route there (ip route get %v)", addr))}
	}
	return found.Findings()
}
