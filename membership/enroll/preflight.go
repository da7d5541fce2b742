package enroll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/skew"
	"github.com/barque/barque/pki"
)

// Preflight tells whether this machine could join the cluster now, as a server or an agent.
func Preflight(ctx context.Context, o *Options, role string, now func() time.Time) []check.Finding {
	findings := append([]check.Finding{o.checkDataDir(role), o.checkIdentity()}, o.checkPorts(role)...)
	return append(findings, o.checkServer(ctx, role, now)...)
}

// CheckOwn tells whether this machine could run the node that it has been, or begin a cluster. It
// asks no server.
func CheckOwn(o *Options, role string) []check.Finding {
	const name = "data directory"
	r, err := Load(o.DataDir)
	of := check.Passed(name, o.DataDir+" is new")
	switch {
	case err != nil:
		of = check.Failed(name, err.Error(), "")
	case r == nil:
		return append([]check.Finding{of, o.checkIdentity()}, o.checkPorts(role)...)
	default:
		if err := r.sameName(o, role); err != nil {
			of = check.Failed(name, err.Error(), "")
			break
		}
		of = check.Passed(name, o.DataDir+" is that of "+r.Role+" "+r.Name+", which goes on")
	}
	return append([]check.Finding{of}, o.checkPorts(role)...)
}

// checkIdentity finds out whether the machine could register as a node.
func (o *Options) checkIdentity() check.Finding {
	const name = "node name and labels"
	if err := o.checkNew(); err != nil {
		return check.Failed(name, err.Error(), "")
	}
	return check.Passed(name, o.Name)
}

// checkDataDir finds out whether the machine belongs to a cluster.
func (o *Options) checkDataDir(role string) check.Finding {
	const name = "data directory"
	r, err := Load(o.DataDir)
	switch {
	case err != nil:
		return check.Failed(name, err.Error(), "")
	case r == nil:
		return check.Passed(name, o.DataDir+" belongs to no cluster yet")
	case r.Phase == PhaseAsking && r.Role == role:
		return check.Passed(name, o.DataDir+" was about to join before, and will continue")
	}
	return check.Failed(name,
		fmt.Sprintf("%s belongs to %s %q of cluster %s already", o.DataDir, r.Role, r.Name, r.Cluster.ID),
		"start it as it is: barque "+r.Role+
			"; a server that was taken out joins again with barque server --wipe --join …")
}

// checkPorts finds out whether the ports are free on the node's address.
func (o *Options) checkPorts(role string) []check.Finding {
	type port struct {
		what, network, address string
		number                 uint16
		flag                   string
	}
	own, gossip := o.Address.String(), cmp.Or(o.GossipPort, GossipPort)
	ports := []port{{"gossip", "tcp", own, gossip, "--gossip-port"}, {"gossip", "udp", own, gossip, "--gossip-port"},
		{"kubelet", "tcp", own, o.KubeletPort, "--kubelet-port"}}
	if role == pki.RoleServer {
		ports = append(ports, port{"API", "tcp", "", o.APIPort, "--api-port"},
			port{"peer", "tcp", own, o.PeerPort, "--peer-port"})
	} else {
		ports = append(ports, port{"local API", "tcp", "127.0.0.1", o.APIPort, "--api-port"})
	}
	var findings []check.Finding
	for _, p := range ports {
		name, address := fmt.Sprintf("%s port %d/%s", p.what, p.number, p.network),
			net.JoinHostPort(p.address, fmt.Sprint(p.number))
		if err := tryPort(p.network, address); err != nil {
			findings = append(findings,
				check.Failed(name, err.Error(), "stop the process that uses it, or choose another one with "+p.flag))
			continue
		}
		findings = append(findings, check.Passed(name, "free"))
	}
	return findings
}

func tryPort(network, address string) error {
	var c io.Closer
	var err error
	if network == "udp" {
		c, err = net.ListenPacket(network, address)
	} else {
		c, err = net.Listen(network, address)
	}
	if err != nil {
		return err
	}
	return c.Close()
}

// preflightTimeout bounds the questions to the server.
const preflightTimeout = 15 * time.Second

// clockApart is the largest difference of two machines' clocks at which certificates and tokens are
// still accepted.
const clockApart = time.Minute

// checkServer finds out whether the server to join can be reached, belongs to the token's cluster,
// and fits.
func (o *Options) checkServer(ctx context.Context, role string, now func() time.Time) []check.Finding {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	const name = "server to join"
	t, err := pki.ParseToken(o.Token)
	if err != nil {
		return []check.Finding{check.Failed("token", err.Error(), "make one on a server: barque token create")}
	}
	ca, err := join.FetchCA(ctx, o.Join, t)
	if err != nil {
		var refused *join.RefusedError
		if errors.As(err, &refused) {
			return []check.Finding{check.Failed(name, err.Error(), "check again at the time that the server names")}
		}
		return []check.Finding{
			check.Failed(name, err.Error(),
				"check the address, the server there, and the network between: its API port must be open")}
	}
	findings := []check.Finding{check.Passed(name, o.Join+" answers, and belongs to the cluster of the token")}
	theirs, clock, err := join.AskVersion(ctx, o.Join, ca)
	if err != nil {
		return append(findings, check.Failed("version", err.Error(), ""))
	}
	if off := clock.Sub(now()).Abs(); off > clockApart {
		findings = append(findings,
			check.Failed("clock", fmt.Sprintf("it is %s apart from the server's", off.Round(time.Second)),
				"set the clock: timedatectl set-ntp true"))
	} else {
		findings = append(findings, check.Passed("clock", "like the server's"))
	}
	return append(findings, o.checkVersion(role, theirs))
}

// checkVersion finds out whether this program's version fits that of the server.
func (o *Options) checkVersion(role, theirs string) check.Finding {
	const name = "version"
	if err := skew.Join("this machine", role, version.String(),
		[]skew.Server{{Name: o.Join, Version: theirs}}); err != nil {
		return check.Failed(name, err.Error(), "install the version of the cluster on this machine")
	}
	return check.Passed(name, fmt.Sprintf("this machine has %s, the server %s", version.String(), theirs))
}
