package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/network/nft"
)

// leftOut reports whether the labels of a Service, or of an EndpointSlice, keep it from being
// proxied: another proxy implements it, or clients connect to the endpoints themselves.
func leftOut(labels map[string]string) bool {
	_, other := labels[balancers.ProxyLabel]
	_, headless := labels[corev1.IsHeadlessService]
	return other || headless
}

// defaultAffinity is the API's default for a ClientIP affinity without a timeout.
const defaultAffinity = 3 * time.Hour

// Snapshot is the input of a plan. Its objects are only read.
type Snapshot struct {
	NodeName string
	Zone     string // of this node; "" without one
	// Family of the addresses that the plan is about.
	Family   nft.Family
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	// Pods of this node, for their host ports.
	Pods []*corev1.Pod
	// Local are destinations that the node itself answers where no service has endpoints.
	Local map[Frontend]Backend
}

// claimed computes the wishes of a snapshot's objects. It is pure, and the rules do not depend on
// the objects' order. A destination with several claimants goes to the first. own are destinations
// of Local, which are claimed after those of services. Chains without a predecessor are still among
// the rules.
func claimed(s Snapshot, own map[Frontend]Backend) Rules {
	p := planner{family: s.Family, node: s.NodeName, zone: s.Zone, local: s.Local, rules: emptyRules(),
		slices: map[string][]*discoveryv1.EndpointSlice{}}
	addressType := discoveryv1.AddressTypeIPv4
	if s.Family == nft.IPv6 {
		addressType = discoveryv1.AddressTypeIPv6
	}
	for _, slice := range s.Slices {
		if slice.AddressType == addressType && slice.DeletionTimestamp == nil && !leftOut(slice.Labels) {
			key := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
			p.slices[key] = append(p.slices[key], slice)
		}
	}
	services := slices.Clone(s.Services)
	// The older service keeps a destination that two claim.
	slices.SortFunc(services, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, service := range services {
		for _, port := range service.Spec.Ports {
			p.servicePort(service, port)
		}
	}
	for frontend, backend := range own {
		if !s.Family.Has(frontend.Addr) {
			continue
		}
		name := fmt.Sprintf("local/%v/%s/%d", frontend.Addr, frontend.Protocol, frontend.Port)
		p.rules.Chains[name] = Chain{Backends: []Backend{backend}}
		p.claim(frontend, destination{chain: name})
	}
	// Host ports come last: they yield to services.
	pods := slices.Clone(s.Pods)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range pods {
		p.hostPorts(pod)
	}
	return p.rules
}

type planner struct {
	family nft.Family
	node   string
	zone   string
	local  map[Frontend]Backend
	slices map[string][]*discoveryv1.EndpointSlice // by namespace/service
	rules  Rules
}

// servicePort adds the destinations of one port of a service.
func (p *planner) servicePort(service *corev1.Service, port corev1.ServicePort) {
	clusterIP, ok := p.clusterIP(service)
	if !ok || service.Spec.Type == corev1.ServiceTypeExternalName {
		return // headless, ExternalName, or of a family we do not speak
	}
	if leftOut(service.Labels) {
		return
	}
	protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP)
	all, local := p.backends(service, port)
	w := &way{
		planner: p, prefix: fmt.Sprintf("%s/%s/%s/%d", service.Namespace, service.Name, protocol, port.Port),
		all: all, local: local,
	}
	if service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		w.affinity = defaultAffinity
		if c := service.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			w.affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}

	at := func(addr netip.Addr, port int32) Frontend {
		return Frontend{Addr: addr, Protocol: protocol, Port: uint16(port)}
	}
	own := at(clusterIP, port.Port)
	if to := w.internal(service); to.chain != "" || !p.isLocal(own) {
		p.claim(own, to) // otherwise the node answers for a service without endpoints
	}
	for _, external := range service.Spec.ExternalIPs {
		if addr, ok := p.parse(external); ok {
			p.claimOther(at(addr, port.Port), w.external(service))
		}
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		addr, ok := p.parse(ingress.IP)
		// Mode Proxy: the balancer is an address that we must not catch.
		if ok && ptr.Deref(ingress.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeVIP &&
			balancers.Leads(service, ingress, balancers.Port{Protocol: protocol, Port: port.Port}) {
			p.claimOther(at(addr, port.Port), w.balancer(service))
		}
	}
	if port.NodePort != 0 {
		p.claim(at(netip.Addr{}, port.NodePort), w.external(service))
	}
}

// backends returns the endpoints to use, of the whole cluster and of this node.
func (p *planner) backends(service *corev1.Service, port corev1.ServicePort) (all, local []Backend) {
	cluster, node := endpoints{family: p.family}, endpoints{family: p.family}
	for _, slice := range p.slices[service.Namespace+"/"+service.Name] {
		for _, slicePort := range slice.Ports {
			if ptr.Deref(slicePort.Name, "") != port.Name || slicePort.Port == nil ||
				ptr.Deref(slicePort.Protocol, corev1.ProtocolTCP) != cmp.Or(port.Protocol, corev1.ProtocolTCP) {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				cluster.add(endpoint, *slicePort.Port)
				if ptr.Deref(endpoint.NodeName, "") == p.node {
					node.add(endpoint, *slicePort.Port)
				}
			}
		}
	}
	cluster.prefer(p.node, p.zone)
	all, local = cluster.usable(), node.usable()
	for _, backend := range local {
		p.rules.Hairpins[backend.Addr] = struct{}{}
	}
	return all, local
}

// endpoints sorts the endpoints of one port by how willing they are.
type endpoints struct {
	family        nft.Family
	ready, ending []Backend
	hints         []discoveryv1.EndpointHints // of each that is ready
}

func (e *endpoints) add(endpoint discoveryv1.Endpoint, port int32) {
	if len(endpoint.Addresses) == 0 {
		return
	}
	addr, ok := parse(e.family, endpoint.Addresses[0]) // the API defines the first one only
	if !ok {
		return
	}
	backend := Backend{Addr: addr, Port: uint16(port)}
	conditions := endpoint.Conditions
	ready := ptr.Deref(conditions.Ready, true)
	switch {
	case ready:
		e.ready = append(e.ready, backend)
		e.hints = append(e.hints, ptr.Deref(endpoint.Hints, discoveryv1.EndpointHints{}))
	case ptr.Deref(conditions.Serving, ready) && ptr.Deref(conditions.Terminating, false):
		e.ending = append(e.ending, backend)
	}
}

// prefer keeps the ready endpoints with a hint for this node, or else for its zone. It does so only
// if each endpoint has a hint: clients may count on one without.
func (e *endpoints) prefer(node, zone string) {
	forNode := func(h discoveryv1.EndpointHints) (said, here bool) {
		return len(h.ForNodes) > 0,
			slices.ContainsFunc(h.ForNodes, func(f discoveryv1.ForNode) bool { return f.Name == node })
	}
	forZone := func(h discoveryv1.EndpointHints) (said, here bool) {
		return len(h.ForZones) > 0,
			zone != "" && slices.ContainsFunc(h.ForZones, func(f discoveryv1.ForZone) bool { return f.Name == zone })
	}
	for _, is := range []func(discoveryv1.EndpointHints) (said, here bool){forNode, forZone} {
		var near []Backend
		all := true
		for i, hint := range e.hints {
			said, here := is(hint)
			all = all && said
			if here {
				near = append(near, e.ready[i])
			}
		}
		if all && len(near) > 0 {
			e.ready = near
			return
		}
	}
}

// usable prefers ready endpoints, then terminating ones that still serve: a late answer is better
// than none.
func (e *endpoints) usable() []Backend {
	chosen := slices.Clone(e.ready)
	if len(chosen) == 0 {
		chosen = slices.Clone(e.ending)
	}
	slices.SortFunc(chosen, compareBackends)
	return slices.Compact(chosen) // an endpoint may be in two slices for a while
}

func compareBackends(a, b Backend) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
}

// destination is where a frontend leads: to a chain, or nowhere.
type destination struct {
	chain   string
	refusal Refusal
}

// way makes the chains of one service port, each when it is first asked for.
type way struct {
	*planner
	prefix     string
	all, local []Backend
	affinity   time.Duration
}

// toAll leads to every endpoint.
func (w *way) toAll() destination {
	if len(w.all) == 0 {
		return destination{refusal: Reject}
	}
	return w.chain("all", Chain{HideForeign: true, Affinity: w.affinity, Backends: w.all})
}

// internal is the way of the cluster address.
func (w *way) internal(service *corev1.Service) destination {
	if ptr.Deref(service.Spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster) != corev1.ServiceInternalTrafficPolicyLocal {
		return w.toAll()
	}
	switch {
	case len(w.local) > 0:
		return w.chain("internal", Chain{HideForeign: true, Affinity: w.affinity, Backends: w.local})
	case len(w.all) > 0:
		return destination{refusal: Drop}
	default:
		return destination{refusal: Reject}
	}
}

// external is the way of node ports, external and load-balancer addresses.
func (w *way) external(service *corev1.Service) destination {
	all := w.toAll()
	if service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || all.chain == "" {
		return all
	}
	// Local endpoints only, and the client's address stays visible to them.
	return w.chain("external", Chain{Cluster: all.chain, Affinity: w.affinity, Backends: w.local})
}

// balancer is external behind the service's list of allowed sources.
func (w *way) balancer(service *corev1.Service) destination {
	target := w.external(service)
	var sources []netip.Prefix
	for _, raw := range service.Spec.LoadBalancerSourceRanges {
		if prefix, err := netip.ParsePrefix(raw); err == nil && w.family.Has(prefix.Addr()) {
			sources = append(sources, prefix.Masked())
		}
	}
	if len(sources) == 0 || target.chain == "" {
		return target
	}
	slices.SortFunc(sources, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return w.chain("balancer", Chain{Sources: slices.Compact(sources), Next: target.chain})
}

// chain registers a chain of this service port.
func (w *way) chain(kind string, c Chain) destination {
	name := kind + "/" + w.prefix
	w.rules.Chains[name] = c
	return destination{chain: name}
}

// isLocal reports whether the node answers at a frontend itself, unless it is a service's own
// address.
func (p *planner) isLocal(frontend Frontend) bool {
	_, local := p.local[frontend]
	return local
}

// claimOther is claim for an address that is not the service's own. It never takes a destination of
// the node itself. Otherwise any user who may make a service could answer for cluster DNS.
func (p *planner) claimOther(frontend Frontend, to destination) {
	if !p.isLocal(frontend) {
		p.claim(frontend, to)
	}
}

// claim gives a frontend its destination unless an earlier claimant has it.
func (p *planner) claim(frontend Frontend, to destination) {
	if _, taken := p.rules.Frontends[frontend]; taken {
		return
	}
	if _, taken := p.rules.Refused[frontend]; taken {
		return
	}
	if to.chain != "" {
		p.rules.Frontends[frontend] = to.chain
	} else {
		p.rules.Refused[frontend] = to.refusal
	}
}

// hostPorts adds the destinations that a pod on this node asks for by hostPort.
func (p *planner) hostPorts(pod *corev1.Pod) {
	if pod.Spec.NodeName != p.node || pod.Spec.HostNetwork ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	addr, ok := p.podIP(pod)
	if !ok {
		return
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, port := range container.Ports {
			if port.HostPort == 0 {
				continue
			}
			frontend := Frontend{Protocol: cmp.Or(port.Protocol, corev1.ProtocolTCP), Port: uint16(port.HostPort)}
			if host, err := netip.ParseAddr(port.HostIP); err == nil {
				if !p.family.Has(host) {
					continue // the table of the other family has it
				}
				if !host.IsUnspecified() {
					frontend.Addr = host
				}
			}
			name := fmt.Sprintf("host/%s/%s/%s/%d", pod.Namespace, pod.Name, frontend.Protocol, port.HostPort)
			if frontend.Addr.IsValid() {
				name += "/" + frontend.Addr.String()
			}
			p.rules.Chains[name] = Chain{Backends: []Backend{{Addr: addr, Port: uint16(port.ContainerPort)}}}
			p.rules.Hairpins[addr] = struct{}{}
			p.claim(frontend, destination{chain: name})
		}
	}
}

// clusterIP is the service's own address of the family.
func (p *planner) clusterIP(service *corev1.Service) (netip.Addr, bool) {
	for _, text := range append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...) {
		if addr, ok := p.parse(text); ok {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// podIP is the pod's own address of the family.
func (p *planner) podIP(pod *corev1.Pod) (netip.Addr, bool) {
	if addr, ok := p.parse(pod.Status.PodIP); ok {
		return addr, true
	}
	for _, ip := range pod.Status.PodIPs {
		if addr, ok := p.parse(ip.IP); ok {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

func (p *planner) parse(text string) (netip.Addr, bool) { return parse(p.family, text) }

// parse reads an address of the family.
func parse(family nft.Family, text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil || !family.Has(addr) {
		return netip.Addr{}, false
	}
	return addr, true
}
