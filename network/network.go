// Package network makes this node part of the pod network: the pods' links and
// addresses (package cni), the routes to the other nodes' pods (routes),
// services (proxy), their names (dns), and what may pass (policy). It sees the cluster through the
// informers that it is given.
//
// Everything happens in the network namespace of the process, and all of it
// stays when the process ends: pods go on, with their connections and services.
// Purge removes it.
//
// Not here yet: addresses across layer-2 networks (VXLAN), IPv6, ingress.
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/network/cni"
	"github.com/barque/barque/network/dns"
	"github.com/barque/barque/network/nft"
	"github.com/barque/barque/network/pace"
	"github.com/barque/barque/network/policy"
	"github.com/barque/barque/network/proxy"
	"github.com/barque/barque/network/routes"
)

// Config is what a node's network works with. All informers belong to the
// caller, who starts them after New and may share them.
type Config struct {
	NodeName string
	// NodeIP is this node's address, by which the others reach it.
	NodeIP netip.Addr
	// PodNetwork holds the addresses of all pods of the cluster (10.42.0.0/16),
	// ServiceNetwork those of all services (10.43.0.0/16).
	PodNetwork, ServiceNetwork netip.Prefix

	Nodes          coreinformers.NodeInformer
	Services       coreinformers.ServiceInformer
	EndpointSlices discoveryinformers.EndpointSliceInformer
	// Pods needs to hold this node's pods only; it serves host ports and policies.
	Pods coreinformers.PodInformer

	// Policies and Namespaces are what NetworkPolicies need. Peers holds the pods of all nodes; it is
	// started when policies need it, and by nobody else.
	Policies   networkinginformers.NetworkPolicyInformer
	Namespaces coreinformers.NamespaceInformer
	Peers      cache.SharedIndexInformer

	// DNS is cluster DNS on this node; without it pods get no names. Where it listens, which networks
	// are its own, and the informers that Network has too, are filled in.
	DNS *dns.Config

	// CNIConfDir is where the container runtime looks for CNI configurations,
	// IPAMDir where the addresses that are given out are kept.
	CNIConfDir, IPAMDir string

	Logger *slog.Logger
}

// Network is one node's part of the pod network.
type Network struct {
	config  Config
	writer  *nft.Writer
	proxy   *proxy.Proxy
	policy  *policy.Agent
	dns     *dns.Server // nil without
	trigger pace.Trigger
	// Only reconcile touches these.
	waiting bool // said to wait for a pod CIDR
	ready   bool // services, policies and names have been there
}

// healthPort is kube-proxy's, which load balancers of clouds ask.
const healthPort = 10256

// reconcilePace bounds how often links and routes are looked at.
var reconcilePace = pace.Pace{
	MinInterval: 100 * time.Millisecond,
	Every:       30 * time.Second,
	RetryMin:    500 * time.Millisecond,
	RetryMax:    15 * time.Second,
}

// New checks the configuration and asks the informers to be started. It touches
// nothing on the machine.
func New(config Config) (*Network, error) {
	if !config.NodeIP.Is4() {
		return nil, fmt.Errorf("network: the node's address %v is no IPv4 address", config.NodeIP)
	}
	if config.CNIConfDir == "" || config.IPAMDir == "" {
		return nil, errors.New("network: CNIConfDir and IPAMDir are needed")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	config.ServiceNetwork = config.ServiceNetwork.Masked()
	n := &Network{trigger: pace.NewTrigger(), writer: new(nft.Writer)}
	var names policy.DNS
	local := map[proxy.Frontend]proxy.Backend{}
	if config.DNS != nil {
		server, err := newDNS(&config)
		if err != nil {
			return nil, err
		}
		n.dns, local = server, frontendsOf(config.DNS.Addresses)
		names = policy.DNS{Service: config.DNS.Addresses, Local: localDNS}
	}
	services, err := proxy.New(proxy.Config{
		NodeName:       config.NodeName,
		Services:       config.Services,
		EndpointSlices: config.EndpointSlices,
		Nodes:          config.Nodes,
		Pods:           config.Pods,
		PodNetwork:     config.PodNetwork,
		ServiceNetwork: config.ServiceNetwork,
		Local:          local,
		Writer:         n.writer,
		HealthAddress:  netip.AddrPortFrom(config.NodeIP, healthPort).String(),
		Logger:         config.Logger,
	})
	if err != nil {
		return nil, err
	}
	n.policy = policy.New(policy.Config{
		NodeName: config.NodeName, Policies: config.Policies, Namespaces: config.Namespaces, Pods: config.Pods, Peers: config.Peers,
		DNS: names, Writer: n.writer, Logger: config.Logger,
	})
	_ = config.Nodes.Informer() // asking for it is what makes its factory start it
	n.config, n.proxy = config, services
	return n, nil
}

// Collectors are the network's metrics.
func (n *Network) Collectors() []prometheus.Collector {
	if n.dns == nil {
		return nil
	}
	return n.dns.Collectors()
}

// Run keeps the node's network in step with the cluster until ctx ends. What it
// has set up stays.
func (n *Network) Run(ctx context.Context) error {
	if err := enableForwarding(); err != nil {
		return err
	}
	if n.dns != nil {
		if err := claim(localDNS.Addr()); err != nil {
			return err // before anything runs that would have to be waited for
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.proxy.Run(ctx) })
	group.Go(func() error { return n.policy.Run(ctx) })
	group.Go(func() error {
		n.writer.Watch(ctx, n.config.Logger, []string{proxy.TableName, policy.TableName}, n.restore)
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
	group.Go(func() error {
		routes.Watch(ctx, n.trigger.Fire)
		return nil
	})
	return group.Wait()
}

// restore has a table written anew that somebody else has changed.
func (n *Network) restore(table string) {
	switch table {
	case proxy.TableName:
		n.proxy.Restore()
	case policy.TableName:
		n.policy.Restore()
	}
}

// Attach returns when the policies of a pod that got its addresses are in the kernel; see policy.Agent.
func (n *Network) Attach(ctx context.Context, pod *corev1.Pod, addrs []string) error {
	return n.policy.Attach(ctx, pod, addrs)
}

// Detach forgets what Attach said of the pod.
func (n *Network) Detach(pod *corev1.Pod) { n.policy.Detach(pod) }

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
	defer func() { _ = nodes.RemoveEventHandler(registration) }() // fails only for strangers
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // ctx ended
	}
	pace.Run(ctx, reconcilePace, n.trigger, n.reconcile, func(err error) {
		n.config.Logger.Error("network: cannot bring links and routes up to date, trying again", "error", err)
	})
	return nil
}

// reconcile does what it can and returns all that went wrong.
func (n *Network) reconcile(context.Context) error {
	nodes, err := n.config.Nodes.Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	desired, own := routes.Plan(n.config.NodeName, n.config.ServiceNetwork, nodes)
	failed := errors.Join(enableForwarding(), routes.Apply(desired, n.config.NodeIP))
	if n.dns != nil {
		failed = errors.Join(failed, claim(localDNS.Addr()))
	}
	if !own.IsValid() {
		// No failure: the controller that gives out shares comes when it comes.
		if !n.waiting {
			n.waiting = true
			n.config.Logger.Info("network: waiting for this node's share of the pod network")
		}
		return failed
	}
	n.waiting = false
	n.policy.Share(own)
	if n.ready = n.ready || n.isReady(); !n.ready {
		return failed // awaitReady fires the trigger
	}
	link, err := routes.Link(n.config.NodeIP)
	if err != nil {
		return errors.Join(failed, err)
	}
	err = cni.Write(cni.Config{Dir: n.config.CNIConfDir, IPAMDir: n.config.IPAMDir, PodCIDR: own, MTU: link.Attrs().MTU})
	return errors.Join(failed, err)
}

// waits are closed when services, policies and names are there.
func (n *Network) waits() []<-chan struct{} {
	waits := []<-chan struct{}{n.proxy.Ready(), n.policy.Ready()}
	if n.dns != nil {
		waits = append(waits, n.dns.Ready())
	}
	return waits
}

// isReady tells whether services, policies and names are there. Until they are for the first time
// there is no CNI configuration on a new node, and so no pod that would miss them.
func (n *Network) isReady() bool {
	for _, ready := range n.waits() {
		select {
		case <-ready:
		default:
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

// Purge removes from the process's network namespace what Run has set up there:
// service rules, policies, routes and the address of cluster DNS. The pods' links go with the pods.
func Purge() error {
	return errors.Join(proxy.Purge(), policy.Purge(), routes.Purge(), unclaim(localDNS.Addr()))
}
