// Package network makes this node part of the pod network: the pods' links and addresses (package
// cni), the routes to the other nodes' pods (routes), overlays where there is no direct route
// (overlay, wireguard), services (proxy), their names (dns), and policies (policy). It sees the
// cluster through the caller's informers.
//
// Everything happens in the network namespace of the process, and all of it stays when the process
// ends: pods, their connections and services continue. Only WireGuard in this process ends with it,
// on a kernel without WireGuard. Remains says what there is, and removes it.
//
// Not here: ingress.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/network/bandwidth"
	"github.com/barque/barque/network/cni"
	"github.com/barque/barque/network/dns"
	"github.com/barque/barque/network/faults"
	"github.com/barque/barque/network/nft"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/pace"
	"github.com/barque/barque/network/policy"
	"github.com/barque/barque/network/proxy"
	"github.com/barque/barque/network/routes"
	"github.com/barque/barque/network/sysctls"
	"github.com/barque/barque/network/wireguard"
)

// Config is a node's network configuration. All informers belong to the caller, which starts them
// after New and may share them.
type Config struct {
	NodeName string
	// Addresses are this node's, by which the others reach it. It has one of each family of pods.
	Addresses nodeaddr.Addresses
	// Detected means that the addresses were not configured: when others replace them, Run fails,
	// so that the node restarts with these.
	Detected bool
	// PodNetworks hold the addresses of all pods of the cluster (10.42.0.0/16), ServiceNetworks
	// those of all services (10.43.0.0/16): one of each family of the cluster.
	PodNetworks, ServiceNetworks []netip.Prefix
	// OtherPlugin leaves the pods' links and addresses, the ways to other nodes, and policies to
	// another network plugin. Services and names stay.
	OtherPlugin bool
	// Overlay configures the transport to nodes of other layer-2 networks.
	Overlay overlay.Config
	// WireGuard is the node's configuration for WireGuard, whichever node of a pair asks for it.
	WireGuard WireGuardConfig
	// Announce changes this Node's object, by which the others learn of its overlay.
	Announce typedcorev1.NodeInterface

	Nodes          coreinformers.NodeInformer
	Services       coreinformers.ServiceInformer
	EndpointSlices discoveryinformers.EndpointSliceInformer
	// Pods needs to hold this node's pods only; it serves host ports and policies.
	Pods coreinformers.PodInformer

	// Policies and Namespaces are the input of NetworkPolicies. Peers holds the pods of all nodes;
	// only package policy starts it, when policies need it.
	Policies   networkinginformers.NetworkPolicyInformer
	Namespaces coreinformers.NamespaceInformer
	Peers      cache.SharedIndexInformer

	// DNS is cluster DNS on this node; without it pods get no names. New fills in its address, its
	// networks, and the informers that Network has too.
	DNS *dns.Config

	// CNIConfDir is the container runtime's directory of CNI configurations, IPAMDir that of
	// assigned addresses.
	CNIConfDir, IPAMDir string
	// SettingsFile gets the settings of the kernel from before the node changed them. Without it
	// there are no notes, and Remains finds none.
	SettingsFile string

	// Tell makes an event on this Node. It may be nil.
	Tell faults.Tell

	Logger *slog.Logger
}

// WireGuardConfig is a node's configuration for WireGuard. Without a key file there is none.
type WireGuardConfig struct {
	Port uint16
	// KeyFile holds the private key. It is made where it is missing.
	KeyFile string
}

// Network is one node's part of the pod network.
type Network struct {
	config  Config
	writer  *nft.Writer
	proxies []*proxy.Proxy // one of each family of services
	policy  *policy.Agent  // nil where another plugin has the pods
	dns     *dns.Server    // nil without
	faults  *faults.Watcher
	trigger pace.Trigger // of reconcile
	look    pace.Trigger // of watchMachine
	// Only reconcile touches these.
	waiting bool // reported to wait for a pod CIDR
	ready   bool // services, policies and names have been there

	tunnel   tunnel
	settings *sysctls.Book
}

// The ports of kube-proxy: load balancers of clouds ask the first one, and people at the node both.
const (
	HealthPort = 10256
	modePort   = 10249
)

// reconcilePace bounds the checks of links and routes.
var reconcilePace = pace.Pace{
	MinInterval: 100 * time.Millisecond,
	Every:       30 * time.Second,
	RetryMin:    500 * time.Millisecond,
	RetryMax:    15 * time.Second,
}

// healthAddresses are where a node with this address serves its health, and the mode of its proxy.
func healthAddresses(node netip.Addr) (health []string, mode string) {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if node.Is6() {
		loopback = netip.IPv6Loopback()
	}
	for _, address := range []netip.Addr{node, loopback} {
		health = append(health, netip.AddrPortFrom(address, HealthPort).String())
	}
	return health, netip.AddrPortFrom(loopback, modePort).String()
}

// New checks the configuration and asks the informers to be started. It touches
// nothing on the machine.
func New(config Config) (*Network, error) {
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if config.CNIConfDir == "" || config.IPAMDir == "" {
		return nil, errors.New("network: CNIConfDir and IPAMDir are needed")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Tell == nil {
		config.Tell = func(string, string, string) {}
	}
	config.PodNetworks, config.ServiceNetworks = masked(config.PodNetworks), masked(config.ServiceNetworks)
	n := &Network{trigger: pace.NewTrigger(), look: pace.NewTrigger(), writer: new(nft.Writer),
		faults: faults.NewWatcher(config.Tell), settings: &sysctls.Book{File: config.SettingsFile}}
	var names policy.DNS
	local := map[proxy.Frontend]proxy.Backend{}
	if config.DNS != nil {
		server, err := newDNS(&config)
		if err != nil {
			return nil, err
		}
		n.dns, local = server, config.frontends()
		names = policy.DNS{Service: config.DNS.Addresses, Local: config.localDNS()}
	}
	for i, services := range config.ServiceNetworks {
		of := proxy.Config{
			NodeName: config.NodeName, Services: config.Services, EndpointSlices: config.EndpointSlices,
			Nodes: config.Nodes, Pods: config.Pods,
			PodNetwork: config.podNetwork(services.Addr().Is6()), ServiceNetwork: services,
			OtherPlugin: config.OtherPlugin, Writer: n.writer, Logger: config.Logger,
		}
		of.Secondary = i > 0
		if i == 0 { // cluster DNS has its address there, and health is served once
			of.Local = local
			of.HealthAddresses, of.ModeAddress = healthAddresses(config.Addresses.Primary())
		}
		p, err := proxy.New(of)
		if err != nil {
			return nil, err
		}
		n.proxies = append(n.proxies, p)
	}
	if n.config = config; config.OtherPlugin {
		return n, nil
	}
	n.policy = policy.New(policy.Config{
		Families: config.families(),
		NodeName: config.NodeName, Policies: config.Policies, Namespaces: config.Namespaces, Pods: config.Pods,
		Peers: config.Peers,
		DNS:   names, Writer: n.writer, Logger: config.Logger,
	})
	_ = config.Nodes.Informer() // asking for it makes its factory start it
	return n, nil
}

// check refuses networks of families in which the node has no address.
func (c *Config) check() error {
	if len(c.Addresses.Internal) == 0 || len(c.PodNetworks) == 0 || len(c.ServiceNetworks) == 0 {
		return errors.New("the node's addresses and the networks of pods and services are needed")
	}
	for _, network := range append(append([]netip.Prefix(nil), c.PodNetworks...), c.ServiceNetworks...) {
		if !c.Addresses.Of(network.Addr().Is6()).IsValid() {
			return fmt.Errorf(
				"the cluster has %v, and this node has no address of that family (%v): give one of each with --node-ip",
				network, c.Addresses.Internal)
		}
	}
	if wishOf(c.Overlay.Mode) != wireguard.Nowhere && c.WireGuard.KeyFile == "" {
		return fmt.Errorf("the overlay %s needs a file for the node's key", c.Overlay.Mode)
	}
	return c.Overlay.Check()
}

// families are those of the pods.
func (c *Config) families() []nft.Family {
	var families []nft.Family
	for _, network := range c.PodNetworks {
		families = append(families, nft.FamilyOf(network.Addr()))
	}
	return families
}

// podNetwork is that of a family; invalid without one.
func (c *Config) podNetwork(is6 bool) netip.Prefix {
	for _, network := range c.PodNetworks {
		if network.Addr().Is6() == is6 {
			return network
		}
	}
	return netip.Prefix{}
}

func masked(networks []netip.Prefix) []netip.Prefix {
	all := make([]netip.Prefix, len(networks))
	for i, network := range networks {
		all[i] = network.Masked()
	}
	return all
}

// enableForwarding lets packets pass in the families of the pods.
func (n *Network) enableForwarding() error {
	families := n.config.families()
	return enableForwarding(n.settings, slices.Contains(families, nft.IPv4), slices.Contains(families, nft.IPv6))
}

// Collectors are the network's metrics.
func (n *Network) Collectors() []prometheus.Collector {
	collectors := []prometheus.Collector{&n.tunnel}
	if n.dns != nil {
		collectors = append(collectors, n.dns.Collectors()...)
	}
	for _, p := range n.proxies {
		collectors = append(collectors, p.Collectors()...)
	}
	return collectors
}

// Run keeps the node's network in step with the cluster until ctx ends. Its set-up stays.
func (n *Network) Run(ctx context.Context) error {
	if err := n.enableForwarding(); err != nil {
		return err
	}
	defer n.tunnel.Close()
	if n.dns != nil {
		if err := claim(n.config.localDNS().Addr()); err != nil {
			return err // before anything runs that would have to be waited for
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range n.proxies {
		group.Go(func() error { return p.Run(ctx) })
	}
	if n.policy != nil {
		group.Go(func() error { return n.policy.Run(ctx) })
	}
	group.Go(func() error {
		n.writer.Watch(ctx, n.config.Logger, n.tables(), n.restore)
		return nil
	})
	if n.dns != nil {
		group.Go(func() error { return n.dns.Run(ctx) })
	}
	group.Go(func() error {
		n.awaitReady(ctx)
		return nil
	})
	group.Go(func() error { return n.runLinks(ctx) })
	group.Go(func() error { return n.watchMachine(ctx) })
	group.Go(func() error {
		routes.Watch(ctx, func() {
			n.trigger.Fire()
			n.look.Fire()
		})
		return nil
	})
	return group.Wait()
}

// restore makes a changed table be written again, and reports the change. A table that was not
// written yet is not reported.
func (n *Network) restore(table nft.Name) {
	written, restore := false, func() {}
	if table.Table == policy.TableName {
		written, restore = isClosed(n.policy.Ready()), n.policy.Restore
	}
	for _, p := range n.proxies {
		if table.Table == proxy.TableName && p.Family() == table.Family {
			written, restore = isClosed(p.Ready()), p.Restore
		}
	}
	if written {
		n.faults.Rules(table.Table)
	}
	restore()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// tables are the node's own.
func (n *Network) tables() []nft.Name {
	var names []nft.Name
	for _, family := range n.config.families() {
		names = append(names, nft.Name{Family: family, Table: proxy.TableName})
		if n.policy != nil {
			names = append(names, nft.Name{Family: family, Table: policy.TableName})
		}
	}
	return names
}

// Attach returns when the policies of a pod that got its addresses are in the kernel; see
// policy.Agent. Its link has the bandwidth that the pod's annotations allow then.
func (n *Network) Attach(ctx context.Context, pod *corev1.Pod, addrs []string) error {
	if n.policy == nil {
		return nil
	}
	limits, err := bandwidth.LimitsOf(pod)
	if err == nil && limits != (bandwidth.Limits{}) && len(addrs) > 0 {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(addrs[0]); err == nil {
			err = errors.Join(bandwidth.Clean(), bandwidth.Apply(addr, limits))
		}
	}
	return errors.Join(err, n.policy.Attach(ctx, pod, addrs))
}

// Detach drops Attach's data of the pod.
func (n *Network) Detach(pod *corev1.Pod) {
	if n.policy != nil {
		n.policy.Detach(pod)
	}
}

// runLinks keeps the CNI configuration and the routes right.
func (n *Network) runLinks(ctx context.Context) error {
	nodes := n.config.Nodes.Informer()
	registration, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { n.trigger.Fire() },
		UpdateFunc: func(any, any) { n.trigger.Fire() },
		DeleteFunc: func(any) { n.trigger.Fire() },
	})
	if err != nil {
		return pace.EndOr(ctx, fmt.Errorf("network: watch nodes: %w", err))
	}
	defer func() { _ = nodes.RemoveEventHandler(registration) }() // fails only for another informer's
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // ctx ended
	}
	pace.Run(ctx, reconcilePace, n.trigger, n.reconcile, func(err error) {
		n.config.Logger.Error("network: cannot bring links and routes up to date, trying again", "err", err)
	})
	return nil
}

// reconcile does as much as it can and returns all errors.
func (n *Network) reconcile(ctx context.Context) error {
	failed := n.enableForwarding()
	if n.dns != nil {
		failed = errors.Join(failed, claim(n.config.localDNS().Addr()))
	}
	if n.policy == nil {
		return failed
	}
	nodes, err := n.config.Nodes.Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	encrypted, err := n.tunnel.endpoint(&n.config)
	failed = errors.Join(failed, err)
	if err != nil && wishOf(n.config.Overlay.Mode) != wireguard.Nowhere {
		return failed // nothing takes another way for want of a key
	}
	plan := routes.Make(routes.World{
		Self: n.config.NodeName, Addresses: n.config.Addresses, ServiceNetworks: n.config.ServiceNetworks,
		PodNetworks: n.config.PodNetworks,
		Overlay:     n.config.Overlay, WireGuard: encrypted, Nodes: nodes, OnLink: nodeaddr.OnLink,
	})
	mtu, err := n.config.Addresses.MTU()
	failed = errors.Join(failed, err, bandwidth.Clean(), n.annotate(ctx, nodes, plan))
	if err == nil {
		mtu, err = n.connect(plan, mtu)
		failed = errors.Join(failed, err)
	}
	if len(plan.Own) == 0 {
		// No failure: the controller that gives out shares comes when it comes.
		if !n.waiting {
			n.waiting = true
			n.config.Logger.Info("network: waiting for this node's share of the pod network")
		}
		return failed
	}
	n.waiting = false
	n.policy.Share(plan.Own)
	if n.ready = n.ready || n.isReady(); !n.ready || mtu == 0 {
		return failed // awaitReady fires the trigger
	}
	err = cni.Write(cni.Config{Dir: n.config.CNIConfDir, IPAMDir: n.config.IPAMDir, PodCIDRs: plan.Own, MTU: mtu})
	return errors.Join(failed, err, cni.SetMTU(plan.Own, mtu))
}

// connect makes the paths to the other nodes, and returns the MTU of pods: that of the node, less
// the overhead of the overlays in use.
func (n *Network) connect(plan routes.Plan, mtu int) (int, error) {
	links, pods := routes.Links{}, mtu
	var failed error
	if len(plan.Peers) > 0 {
		pods = min(pods, mtu-overlay.Overhead(plan.Endpoint.Address))
		index, err := overlay.Apply(overlay.Device{Own: plan.Endpoint, Shares: plan.Own, MTU: mtu, Peers: plan.Peers})
		if links[routes.Overlay] = index; err != nil {
			plan, failed = plan.Without(routes.Overlay), errors.Join(failed, err)
		}
	}
	if len(plan.Tunnels) > 0 {
		overhead := wireguard.Overhead(plan.WireGuard.Address)
		pods = min(pods, mtu-overhead)
		index, err := n.tunnel.Apply(
			wireguard.Want{Port: plan.WireGuard.Port, Shares: plan.Own, MTU: mtu, Overhead: overhead,
				Peers: plan.Tunnels})
		if links[routes.WireGuard] = index; err != nil {
			plan, failed = plan.Without(routes.WireGuard), errors.Join(failed, err)
		}
	}
	failed = errors.Join(failed, routes.Apply(plan, n.config.Addresses, links))
	if len(plan.Peers) == 0 {
		failed = errors.Join(failed, overlay.Remove())
	}
	if len(plan.Tunnels) == 0 {
		failed = errors.Join(failed, n.tunnel.Remove())
	}
	return pods, failed
}

// annotate tells the other nodes how this one is reached through overlays, or that it is not.
func (n *Network) annotate(ctx context.Context, nodes []*corev1.Node, plan routes.Plan) error {
	annotations := map[string]string{overlay.Annotation: plan.Endpoint.String(),
		wireguard.Annotation: plan.WireGuard.String()}
	for _, node := range nodes {
		if node.Name != n.config.NodeName || node.Annotations[overlay.Annotation] == annotations[overlay.Annotation] &&
			node.Annotations[wireguard.Annotation] == annotations[wireguard.Annotation] {
			continue
		}
		patch, err := json.Marshal(
			map[string]any{"metadata": map[string]any{"uid": node.UID, "annotations": annotations}})
		if err == nil {
			_, err = n.config.Announce.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			return fmt.Errorf("tell the other nodes of this one's overlay: %w", err)
		}
	}
	return nil
}

// waits are closed when services, policies and names are there.
func (n *Network) waits() []<-chan struct{} {
	var waits []<-chan struct{}
	if n.policy != nil {
		waits = append(waits, n.policy.Ready())
	}
	for _, p := range n.proxies {
		waits = append(waits, p.Ready())
	}
	if n.dns != nil {
		waits = append(waits, n.dns.Ready())
	}
	return waits
}

// isReady reports whether services, policies and names work. Before the first time a new node has
// no CNI configuration, and so no pod that would miss them.
func (n *Network) isReady() bool {
	for _, ready := range n.waits() {
		if !isClosed(ready) {
			return false
		}
	}
	return true
}

// awaitReady fires the trigger when services, policies and names are there.
func (n *Network) awaitReady(ctx context.Context) {
	for _, ready := range n.waits() {
		select {
		case <-ready:
		case <-ctx.Done():
			return
		}
	}
	n.trigger.Fire()
}
