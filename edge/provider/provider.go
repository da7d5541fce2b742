// Package provider is the load balancer of bare machines: it gives Services of type LoadBalancer
// addresses of the cluster's pools, or the nodes' own ones.
//
// Which kind a Service gets:
//   - with loadBalancerClass barque.io/pool or barque.io/node, that one;
//   - without a class, addresses of pools if there is an AddressPool, or if the Service asks for an
//     address or a pool; otherwise those of the nodes;
//   - a Service without a class that has the nodes' addresses keeps them when a pool is made.
//
// Balance depends on its arguments and on the informers alone. The API server reserves
// all that it chooses; controllers/servicelb calls it, and writes.
package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/balancers"
)

// Config of a Provider.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// PodCIDRs are the ranges of all pods. No pool may have addresses of them.
	PodCIDRs []netip.Prefix
	// Reserved are addresses that no Service may get; the value names the owner.
	Reserved map[netip.Addr]string
	// Ports are ports of the nodes that no Service may take over; the value names the owner.
	Ports map[balancers.Port]string
	// Gateway knows the ports of the nodes that routes need; nil is none.
	Gateway Gateway
	// FirstNodePort and LastNodePort bound the node ports, which no Service may take over either.
	FirstNodePort, LastNodePort int32
}

// Gateway is the gateway of the nodes. A Service gets no port that a route needs, and keeps one
// that it has.
type Gateway interface {
	// PortUser returns the object that needs a port, such as "the Ingress default/web"; "" if none
	// does. known is false before it knows.
	PortUser(port balancers.Port) (user string, known bool)
	// Follow calls changed when answers of PortUser have changed, and at first when it knows, until
	// ctx ends.
	Follow(ctx context.Context, changed func()) error
}

// Provider implements controllers/servicelb's interface of that name.
type Provider struct {
	cfg      Config
	services cache.SharedIndexInformer
	nodes    corelisters.NodeLister
	spaces   corelisters.NamespaceLister
	cidrs    networkinglisters.ServiceCIDRLister
	slices   cache.Indexer
	pods     cache.Indexer

	mu    sync.Mutex
	pools []*pool.Object
	known bool // the pools are those of the API
}

// Names of indexes.
const (
	byService  = "barque.io/service-of-slice"
	byHostPort = "barque.io/host-port"
)

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Provider, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	core := cfg.Informers.Core().V1()
	slices, pods := cfg.Informers.Discovery().V1().EndpointSlices().Informer(), core.Pods().Informer()
	p := &Provider{
		cfg: cfg, services: core.Services().Informer(), slices: slices.GetIndexer(), pods: pods.GetIndexer(),
		// A lister makes the factory start its informer.
		nodes: core.Nodes().Lister(), spaces: core.Namespaces().Lister(),
		cidrs: cfg.Informers.Networking().V1().ServiceCIDRs().Lister(),
	}
	return p, errors.Join(
		slices.AddIndexers(cache.Indexers{byService: serviceOfSlice}),
		pods.AddIndexers(cache.Indexers{byHostPort: hostPorts}))
}

func serviceOfSlice(obj any) ([]string, error) {
	if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
	}
	return nil, nil
}

// hostPorts are the ports that a pod has taken of its node.
func hostPorts(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	var out []string
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				out = append(out, balancers.Port{Protocol: p.Protocol, Port: p.HostPort}.String())
			}
		}
	}
	return out, nil
}

// Serves reports whether a Service of type LoadBalancer is bare metal's. One without a class is not
// while it has addresses that Barque has not given: another load balancer serves it.
func (p *Provider) Serves(s *corev1.Service) bool {
	if class := s.Spec.LoadBalancerClass; class != nil {
		return *class == balancers.ClassPool || *class == balancers.ClassNodes
	}
	return len(s.Status.LoadBalancer.Ingress) == 0 || balancers.ConditionOf(s) != ""
}

// Balance returns the status that a Service should have: see controllers/servicelb.
func (p *Provider) Balance(
	s *corev1.Service, all []*corev1.Service, avoid map[netip.Addr]string,
) (status corev1.ServiceStatus, known bool, refused error) {
	p.mu.Lock()
	objects, known := p.pools, p.known
	p.mu.Unlock()
	if !known {
		return status, false, nil
	}
	if kindOf(s, len(objects) > 0) == balancers.NodesCondition {
		if p.cfg.Gateway != nil {
			if _, known := p.cfg.Gateway.PortUser(balancers.Port{}); !known {
				return status, false, nil
			}
		}
		status, refused = p.ofNodes(s, all)
	} else {
		status, refused = p.ofPools(s, all, objects, avoid)
	}
	return status, true, refused
}

// kindOf returns the kind of addresses that a Service is to have, as a condition.
func kindOf(s *corev1.Service, pools bool) string {
	if class := s.Spec.LoadBalancerClass; class != nil && *class == balancers.ClassNodes {
		return balancers.NodesCondition
	} else if class != nil {
		return balancers.PoolCondition
	}
	asks := s.Spec.LoadBalancerIP != "" || s.Annotations[balancers.AddressesAnnotation] != "" ||
		s.Annotations[balancers.PoolAnnotation] != ""
	has := balancers.ConditionOf(s) == balancers.NodesCondition && len(s.Status.LoadBalancer.Ingress) > 0
	if asks || pools && !has {
		return balancers.PoolCondition
	}
	return balancers.NodesCondition
}

// ofNodes is the status of a Service at the nodes' own addresses.
func (p *Provider) ofNodes(s *corev1.Service, all []*corev1.Service) (corev1.ServiceStatus, error) {
	nodes, _ := p.nodes.List(labels.Everything()) // fails never: it reads the memory
	ports, refused := nodePorts(s, all, p.portInUse)
	var addresses []netip.Addr
	if len(ports) > 0 {
		addresses = nodeAddresses(s, nodes, p.slicesOf(s))
		if len(addresses) == 0 && refused == nil {
			refused = whyNoNodes(s)
		}
	}
	return statusOf(s, balancers.NodesCondition, addresses, ports, "The addresses of the nodes", refused), refused
}

func whyNoNodes(s *corev1.Service) error {
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		return pool.Refuse(pool.NoNodes, "no node has a ready endpoint, which externalTrafficPolicy Local needs, "+
			"and an address of the families %v", balancers.Families(s))
	}
	return pool.Refuse(pool.NoNodes, "no node is ready, has an address of the families %v, and lacks the label %s",
		balancers.Families(s), corev1.LabelNodeExcludeBalancers)
}

func (p *Provider) slicesOf(s *corev1.Service) []*discoveryv1.EndpointSlice {
	objects, _ := p.slices.ByIndex(byService, s.Namespace+"/"+s.Name) // New made the index
	var out []*discoveryv1.EndpointSlice
	for _, obj := range objects {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok && slice.DeletionTimestamp == nil {
			out = append(out, slice)
		}
	}
	return out
}

// portInUse returns the holder of a port of the nodes beside Services, and "" for a free one. has
// says that the Service has it already.
func (p *Provider) portInUse(port balancers.Port, has bool) string {
	if by, ok := p.cfg.Ports[port]; ok {
		return by
	}
	if p.cfg.Gateway != nil && !has {
		if by, _ := p.cfg.Gateway.PortUser(port); by != "" {
			return by
		}
	}
	if port.Port >= p.cfg.FirstNodePort && port.Port <= p.cfg.LastNodePort {
		return fmt.Sprintf("the range of node ports, %d-%d", p.cfg.FirstNodePort, p.cfg.LastNodePort)
	}
	pods, _ := p.pods.ByIndex(byHostPort, port.String()) // New made the index
	for _, obj := range pods {
		if pod, ok := obj.(*corev1.Pod); ok {
			return "the pod " + pod.Namespace + "/" + pod.Name + ", which has it as its host port"
		}
	}
	return ""
}

// ofPools is the status of a Service with addresses of pools.
func (p *Provider) ofPools(
	s *corev1.Service, all []*corev1.Service, objects []*pool.Object, avoid map[netip.Addr]string,
) (corev1.ServiceStatus, error) {
	in := pool.Cluster{Services: all, Reserved: p.reserved()}
	maps.Copy(in.Reserved, avoid)
	for _, j := range pool.Judge(objects, p.clusterRanges()) {
		in.Pools = append(in.Pools, j.Pool)
	}
	var namespace labels.Set
	if n, err := p.spaces.Get(s.Namespace); err == nil {
		namespace = n.Labels
	}
	choice, refused := pool.Choose(s, namespace, in)
	if len(objects) == 0 && refused != nil {
		refused = pool.Refuse(pool.NoPool, "there is no AddressPool; make one, or drop what the Service asks for: "+
			"without it, it gets the nodes' addresses")
	}
	message := "Of the pool " + strings.Join(unique(choice.Pools), ", ")
	return statusOf(s, balancers.PoolCondition, choice.Addresses, balancers.Wanted(s), message, refused), refused
}

func unique(names []string) []string {
	var out []string
	for _, n := range names {
		if len(out) == 0 || out[len(out)-1] != n {
			out = append(out, n)
		}
	}
	return out
}

// reserved are the addresses that no Service may have.
func (p *Provider) reserved() map[netip.Addr]string {
	out := maps.Clone(p.cfg.Reserved)
	if out == nil {
		out = map[netip.Addr]string{}
	}
	nodes, _ := p.nodes.List(labels.Everything()) // fails never: it reads the memory
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			if address, err := netip.ParseAddr(a.Address); err == nil {
				out[address.Unmap()] = "the node " + n.Name
			}
		}
	}
	return out
}

// clusterRanges are the ranges that no pool may have addresses of.
func (p *Provider) clusterRanges() map[netip.Prefix]string {
	out := map[netip.Prefix]string{}
	for _, cidr := range p.cfg.PodCIDRs {
		out[cidr] = "pods"
	}
	cidrs, _ := p.cidrs.List(labels.Everything()) // fails never: it reads the memory
	for _, c := range cidrs {
		for _, text := range c.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				out[prefix] = "Services"
			}
		}
	}
	return out
}

// statusOf is a Service's status with these addresses.
func statusOf(
	s *corev1.Service, condition string, addresses []netip.Addr, ports []balancers.Port, message string, refused error,
) corev1.ServiceStatus {
	status := *s.Status.DeepCopy()
	status.LoadBalancer = corev1.LoadBalancerStatus{}
	for _, a := range addresses {
		status.LoadBalancer.Ingress = append(status.LoadBalancer.Ingress, balancers.Ingress(a, ports))
	}
	says := metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "Assigned", Message: message}
	if refused != nil {
		says.Status, says.Reason, says.Message = metav1.ConditionFalse, string(pool.Invalid), refused.Error()
		var r *pool.Refusal
		if errors.As(refused, &r) {
			says.Reason = string(r.Reason)
		}
	}
	for _, other := range []string{balancers.PoolCondition, balancers.NodesCondition} {
		if other != condition {
			meta.RemoveStatusCondition(&status.Conditions, other)
		}
	}
	meta.SetStatusCondition(&status.Conditions, says)
	return status
}
