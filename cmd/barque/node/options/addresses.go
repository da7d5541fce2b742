package options

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"time"

	kubeletconfig "github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/wireguard"
)

// completeAddresses reads the node's addresses, or finds them out.
func (o *Options) completeAddresses() (err error) {
	if o.Addresses.Internal, err = nodeaddr.Parse(o.NodeIPs); err != nil {
		return enroll.WrongOption("--node-ip: %v", err)
	}
	if o.Addresses.External, err = nodeaddr.Parse(o.NodeExternalIPs); err != nil {
		return enroll.WrongOption("--node-external-ip: %v", err)
	}
	if o.Overlay == (overlay.Config{}) {
		o.Overlay = overlay.Config{Mode: overlay.Auto, VNI: overlay.DefaultVNI, Port: overlay.DefaultPort}
	}
	if err := o.Overlay.Check(); err != nil {
		return enroll.WrongOption("%v", err)
	}
	if o.WireGuardPort == 0 {
		o.WireGuardPort = wireguard.DefaultPort
	}
	if o.Network != "" && o.Network != OwnNetwork && o.Network != noNetwork {
		return enroll.WrongOption("--network %q: want barque or none", o.Network)
	}
	if o.OtherNetwork() && (o.Overlay.Mode == overlay.WireGuard || o.Overlay.Mode == overlay.AutoWireGuard) {
		return enroll.WrongOption(
			"--network none leaves the pod network to another plugin, so --overlay %s would encrypt nothing: omit one of them", o.Overlay.Mode)
	}
	if len(o.Addresses.Internal) > 0 {
		return nil
	}
	o.Detected = true
	if o.Addresses.Internal, err = nodeaddr.Detect(); err != nil {
		return err
	}
	if o.prefers6() {
		slices.Reverse(o.Addresses.Internal)
	}
	return nil
}

// familyPatience bounds the wait for an address of a further family. A machine that boots gets it
// within seconds of the first one, or never.
const familyPatience = 30 * time.Second

// AwaitAddress waits until the machine has an address of each of its cluster's families, if none
// was given. A machine that boots may get them late, and one after the other.
func (o *Options) AwaitAddress(ctx context.Context, logger *slog.Logger) error {
	if len(o.NodeIPs) > 0 {
		return nil
	}
	waited, err := nodeaddr.Await(ctx, o.awaitFamilies(), func(cause error) {
		logger.Warn("waiting for an address of this machine; --node-ip gives one that is not to be waited for",
			"err", cause)
		o.State.Status(waitsFor(cause))
	})
	if err == nil && waited > 0 {
		logger.Info("the wait for an address of this machine has ended", "after", waited.Round(time.Millisecond))
		o.State.Status("starting")
	}
	return err
}

// waitsFor tells people why the start waits.
func waitsFor(cause error) string {
	if family := (*familyError)(nil); errors.As(cause, &family) {
		return fmt.Sprintf("waiting up to %s for a further address of this machine: %v", familyPatience, cause)
	}
	return "waiting for an address of this machine: no route leads to other machines yet; --node-ip gives an address that is not to be waited for"
}

// awaitFamilies returns hasFamilies, which is content familyPatience after it missed a family
// first. The start tells the error then.
func (o *Options) awaitFamilies() func([]netip.Addr) error {
	var missed time.Time
	return func(addrs []netip.Addr) error {
		err := o.hasFamilies(addrs)
		if err == nil {
			return nil
		}
		if missed.IsZero() {
			missed = time.Now()
		}
		if time.Since(missed) >= familyPatience {
			return nil
		}
		return err
	}
}

// familyError means that the machine has no address of a family of its cluster.
type familyError struct {
	pods  netip.Prefix
	addrs []netip.Addr
}

func (e *familyError) Error() string {
	return fmt.Sprintf(
		"the cluster has pods in %s, and this machine has no address of that family: it has %v; give its addresses with --node-ip", e.pods, e.addrs)
}

// hasFamilies returns an error if the cluster of this node has pods in a family of which no address
// is there. Any address will do for a node that has no cluster yet.
func (o *Options) hasFamilies(addrs []netip.Addr) error {
	r, err := enroll.Load(o.DataDir)
	if err != nil || r == nil {
		return nil // the start tells the error
	}
	s, err := SettingsOf(r)
	if err != nil {
		return nil // likewise
	}
	for _, pods := range s.ClusterCIDRs {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is6() == pods.Addr().Is6() }) {
			return &familyError{pods, addrs}
		}
	}
	return nil
}

// prefers6 reports whether IPv6 is first among the detected addresses. It is in a new cluster whose
// services have it first, and for a node that joins by an IPv6 address.
func (o *Options) prefers6() bool {
	if o.Join == "" {
		return len(o.Settings.ServiceCIDRs) > 0 && o.Settings.ServiceCIDRs.Primary().Addr().Is6()
	}
	server, err := url.Parse(o.Join)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(server.Hostname())
	return err == nil && addr.Is6()
}

// fitAddresses drops detected addresses outside the cluster's families. It fails if the node's
// first family is not the cluster's: the API could not reach the node.
func (o *Options) fitAddresses(s Settings) error {
	if o.Detected {
		o.Addresses.Internal = slices.DeleteFunc(o.Addresses.Internal,
			func(a netip.Addr) bool { return !s.ClusterCIDRs.Has(a.Is6()) })
	}
	internal := o.Addresses.Internal
	for _, pods := range s.ClusterCIDRs {
		if !o.Addresses.Of(pods.Addr().Is6()).IsValid() {
			return fmt.Errorf(
				"the cluster has pods in %s, and this node has no address of that family (%v): give its addresses with --node-ip", pods, internal)
		}
	}
	if len(s.ServiceCIDRs) == 0 || len(internal) == 0 {
		return nil // an older server has sent no ranges
	}
	if first := s.ServiceCIDRs.Primary(); internal[0].Is6() != first.Addr().Is6() {
		return fmt.Errorf(
			"the cluster's first family is that of %s, but this node's first address is %s: give --node-ip in that order", first, internal[0])
	}
	return nil
}

// SettleAddresses fits the node's addresses to the cluster, and then the kubelet to these.
func (o *Options) SettleAddresses(s Settings) error {
	if err := o.fitAddresses(s); err != nil {
		return err
	}
	if err := o.checkAPIAddresses(s); err != nil {
		return err
	}
	return o.settleKubelet()
}

// checkKubelet checks the kubelet's configuration against this machine, before the node joins. A
// detected first address may still go, with its family, so any of them will do until then.
func (o *Options) checkKubelet() error {
	first := o.settledAt(o.Addr(), new(kubeletconfig.Configuration))
	if first == nil || !o.Detected {
		return first
	}
	for _, other := range o.Addresses.Internal {
		if o.settledAt(other, new(kubeletconfig.Configuration)) == nil {
			return nil
		}
	}
	return first
}

// settleKubelet completes the kubelet's configuration, once fitAddresses has left the node's
// addresses.
func (o *Options) settleKubelet() error {
	settled := new(kubeletconfig.Configuration)
	if err := o.settledAt(o.Addr(), settled); err != nil || o.Kubelet == nil {
		return err
	}
	o.Kubelet = settled // the one that was read stays, for a start again in this process
	return nil
}

// settledAt puts into settled the configuration of a kubelet that serves at an address.
func (o *Options) settledAt(at netip.Addr, settled *kubeletconfig.Configuration) error {
	if o.Kubelet == nil {
		return nil
	}
	*settled = *o.Kubelet
	if o.NoNode {
		return nil
	}
	err := kubeletconfig.Settle(settled,
		kubeletconfig.Machine{Address: netip.AddrPortFrom(at, o.KubeletPort), Swaps: "/proc/swaps",
			Cgroups: "/sys/fs/cgroup"})
	if place, ok := errors.AsType[*kubeletconfig.PlaceError](err); ok {
		return enroll.WrongOption("%v", place)
	}
	return err
}

// Providers of the pod network.
const (
	OwnNetwork = "barque"
	noNetwork  = "none"
)

// OtherNetwork tells whether another network plugin makes the pod network.
func (o *Options) OtherNetwork() bool { return o.Network == noNetwork }

// UsualCNIConfDir is where network plugins put their configuration.
const UsualCNIConfDir = "/etc/cni/net.d"

// CNIConfDir is the directory of CNI configurations of our own containerd; "" is its default.
func (o *Options) CNIConfDir() string {
	if o.OtherNetwork() {
		return UsualCNIConfDir
	}
	return ""
}

// parseAgentCIDRs reads --agent-cidr.
func (o *Options) parseAgentCIDRs() error {
	o.AgentPrefixes = nil
	for _, text := range o.AgentCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return enroll.WrongOption("--agent-cidr %s: want a range of addresses such as 203.0.113.0/24", text)
		}
		o.AgentPrefixes = append(o.AgentPrefixes, p)
	}
	return nil
}
