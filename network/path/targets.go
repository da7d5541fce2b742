package path

import (
	"cmp"
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

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/network/nodeaddr"
)

// Target is a machine that this one is to be in a cluster with.
type Target struct {
	Host string
	API  uint16 // port of a server; 0 for a machine of unknown role
}

// apiPort is that of a server whose URL has none.
const apiPort = 6443

// ParseTarget reads an address or a host name, or the URL of a server.
func ParseTarget(text string) (Target, error) {
	if !strings.Contains(text, "://") {
		host := strings.Trim(text, "[]")
		if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, ":/ ")) {
			return Target{},
				fmt.Errorf("%q: want the address or the host name of a machine, or https://HOST:6443 of a server", text)
		}
		return Target{Host: host}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return Target{}, fmt.Errorf("%q: want https://HOST:6443 of a server", text)
	}
	m := Target{Host: u.Hostname(), API: apiPort}
	if u.Port() != "" {
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || port == 0 {
			return Target{}, fmt.Errorf("%q: want a port from 1 to 65535", text)
		}
		m.API = uint16(port)
	}
	return m, nil
}

// Needs are the ports of other machines that this one will send to, as docs/network.md has them.
type Needs struct {
	Server bool // this machine is to be a server, which needs more of the others than an agent
	// Ports of the others.
	Peer, Gossip, Kubelet, VXLAN, WireGuard uint16
}

// Ports returns the required ports of the machine.
func (n *Needs) Ports(m Target) []Port {
	perhaps := m.API == 0 // a machine that is named by its address may be a server or an agent
	ports := []Port{{Number: cmp.Or(m.API, apiPort), For: "the API", ServerOnly: perhaps}}
	if n.Server {
		ports = append(ports, Port{Number: n.Peer, For: "the store", ServerOnly: perhaps})
	}
	ports = append(ports, Port{Number: n.Gossip, For: "gossip"}, Port{Number: n.Gossip, UDP: true, For: "gossip"})
	if n.Server {
		ports = append(ports, Port{Number: n.Kubelet, For: "the kubelet, for logs, exec and metrics"})
	}
	return append(ports, Port{Number: n.VXLAN, UDP: true, For: "VXLAN, between different layer-2 networks"},
		Port{Number: n.WireGuard, UDP: true, For: "WireGuard, where a node asks for it"})
}

// Examine explores the paths to all machines at once, and returns findings with remedies for each.
func (n *Needs) Examine(ctx context.Context, machines []Target) []check.Finding {
	found := make([][]check.Finding, len(machines))
	var asking sync.WaitGroup
	for i, m := range machines {
		asking.Go(func() { found[i] = n.examineOne(ctx, m) }) // ends with its questions
	}
	asking.Wait()
	var all []check.Finding
	for _, findings := range found {
		all = append(all, findings...)
	}
	return all
}

func (n *Needs) examineOne(ctx context.Context, m Target) []check.Finding {
	name := "path to " + m.Host
	addr, err := addressOf(ctx, m.Host)
	if err != nil {
		return []check.Finding{
			check.Failed(name, err.Error(), "give its address, or mend the name in DNS or /etc/hosts")}
	}
	found, err := Explore(ctx, addr, n.Ports(m))
	if err != nil {
		return []check.Finding{
			check.Failed(name, err.Error(),
				fmt.Sprintf("run it as root, and give this machine a route there (ip route get %v)", addr))}
	}
	return found.Findings()
}

// lookupPatience bounds the look-up of a name.
const lookupPatience = 10 * time.Second

// addressOf returns an address of the machine to which this one has a route, if any.
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
