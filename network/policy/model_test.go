package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// world is what a cluster holds.
type world struct {
	namespaces map[string]labels.Set
	pods       map[string]*Pod
	policies   map[string]*networkingv1.NetworkPolicy
}

var testDNS = DNS{
	Service: []netip.Addr{netip.MustParseAddr("10.43.0.10")},
	Local:   netip.MustParseAddrPort("169.254.20.53:10053"),
}

// flow is a connection as it is after address translation.
type flow struct {
	client, server netip.Addr
	protocol       corev1.Protocol
	port           uint16
}

// allows is what the API documentation says of NetworkPolicies, read directly off the objects.
func (w *world) allows(f flow) bool {
	if f.client == f.server {
		return true
	}
	client, server := w.at(f.client), w.at(f.server)
	if f.server == testDNS.Local.Addr() {
		server = testDNS.pod()
	}
	return w.lets(client, networkingv1.PolicyTypeEgress, f, server) &&
		w.lets(server, networkingv1.PolicyTypeIngress, f, client)
}

// at returns the pod at an address, or nil.
func (w *world) at(addr netip.Addr) *Pod {
	for _, pod := range w.pods {
		if slices.Contains(pod.Addrs, addr) {
			return pod
		}
	}
	return nil
}

// lets tells whether the policies of a local pod let the flow pass in one direction.
func (w *world) lets(pod *Pod, direction networkingv1.PolicyType, f flow, peer *Pod) bool {
	if pod == nil || !pod.Local {
		return true // another node enforces it
	}
	isolated := false
	for _, p := range w.policies {
		if p.Namespace != pod.Namespace || !slices.Contains(p.Spec.PolicyTypes, direction) ||
			!matches(&p.Spec.PodSelector, pod.Labels) {
			continue
		}
		isolated = true
		if direction == networkingv1.PolicyTypeIngress {
			for _, rule := range p.Spec.Ingress {
				if w.hasPeer(rule.From, p.Namespace, f.client, peer) && w.hasPort(rule.Ports, f, pod) {
					return true
				}
			}
			continue
		}
		for _, rule := range p.Spec.Egress {
			if w.hasPeer(rule.To, p.Namespace, f.server, peer) && w.hasPort(rule.Ports, f, peer) {
				return true
			}
		}
	}
	return !isolated
}

func matches(s *metav1.LabelSelector, set labels.Set) bool {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic(err)
	}
	return parsed.Matches(set)
}

func (w *world) hasPeer(peers []networkingv1.NetworkPolicyPeer, namespace string, addr netip.Addr, pod *Pod) bool {
	if len(peers) == 0 {
		return true
	}
	addrs := []netip.Addr{addr}
	if addr == testDNS.Local.Addr() {
		addrs = append(addrs, testDNS.Service...)
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			if slices.ContainsFunc(addrs, func(addr netip.Addr) bool {
				return netip.MustParsePrefix(p.IPBlock.CIDR).Contains(addr) &&
					!slices.ContainsFunc(p.IPBlock.Except,
						func(e string) bool { return netip.MustParsePrefix(e).Contains(addr) })
			}) {
				return true
			}
			continue
		}
		if pod == nil {
			continue
		}
		in := pod.Namespace == namespace
		if p.NamespaceSelector != nil {
			set, known := w.namespaces[pod.Namespace]
			in = known && matches(p.NamespaceSelector, set)
		}
		if in && (p.PodSelector == nil || matches(p.PodSelector, pod.Labels)) {
			return true
		}
	}
	return false
}

func (w *world) hasPort(ports []networkingv1.NetworkPolicyPort, f flow, server *Pod) bool {
	if len(ports) == 0 {
		return true
	}
	number := f.port
	if f.server == testDNS.Local.Addr() && number == testDNS.Local.Port() {
		number = 53
	}
	for _, p := range ports {
		if ptr.Deref(p.Protocol, corev1.ProtocolTCP) != f.protocol {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			if server != nil &&
				slices.Contains(server.Ports, NamedPort{Name: p.Port.StrVal, Protocol: f.protocol, Number: f.port}) {
				return true
			}
		case p.EndPort != nil:
			if int32(number) >= p.Port.IntVal && int32(number) <= *p.EndPort {
				return true
			}
		case p.Port.IntVal == int32(number):
			return true
		}
	}
	return false
}

// allows is what the kernel does with a flow by the Rules.
func (r Rules) allows(f flow) bool {
	if f.client == f.server {
		return true
	}
	return r.passes(r.Pods[f.client].Egress, f, f.server) && r.passes(r.Pods[f.server].Ingress, f, f.client)
}

func (r Rules) passes(profile string, f flow, peer netip.Addr) bool {
	if profile == "" {
		return true
	}
	for _, name := range r.Profiles[profile] {
		for _, rule := range r.Policies[name].Rules {
			if (rule.AnyPeer || slices.ContainsFunc(rule.Peers, func(p Peer) bool {
				_, member := r.Sets[p.Set][netip.AddrPortFrom(peer, 0)]
				return member || p.contains(peer)
			})) && (rule.AnyPort || slices.ContainsFunc(rule.Ports, func(p Port) bool { return r.isPort(p, f) })) {
				return true
			}
		}
	}
	return false
}

func (r Rules) isPort(p Port, f flow) bool {
	if p.Protocol != f.protocol || p.At.IsValid() && p.At != f.server {
		return false
	}
	if p.Set != "" {
		_, member := r.Sets[p.Set][netip.AddrPortFrom(f.server, f.port)]
		return member
	}
	return f.port >= p.First && f.port <= p.Last
}

// Random worlds are small, so that what they hold meets.

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

var (
	testNamespaces = []string{"x", "y", "z", dnsNamespace}
	protocols      = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
)

func randomLabels(r *rand.Rand) labels.Set {
	set := labels.Set{}
	for _, key := range []string{"a", "b"} {
		if value := pick(r, "", "1", "2"); value != "" {
			set[key] = value
		}
	}
	return set
}

func randomSelector(r *rand.Rand) metav1.LabelSelector {
	switch key := pick(r, "a", "b"); r.IntN(6) {
	case 0:
		return metav1.LabelSelector{}
	case 1:
		return metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: key, Operator: pick(r, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}}}
	case 2:
		return metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"1"}}}}
	case 3:
		return metav1.LabelSelector{MatchLabels: dnsLabels}
	default:
		return metav1.LabelSelector{MatchLabels: map[string]string{key: pick(r, "1", "2")}}
	}
}

func randomPod(r *rand.Rand, i int) *Pod {
	p := &Pod{Namespace: pick(r, testNamespaces...), Labels: randomLabels(r), Local: r.IntN(2) == 0,
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 42, byte(i % 3), byte(i + 1)})}}
	for _, name := range []string{"web", "dns"} {
		if r.IntN(2) == 0 {
			p.Ports = append(p.Ports,
				NamedPort{Name: name, Protocol: pick(r, protocols...), Number: pick[uint16](r, 53, 80, 81)})
		}
	}
	return p
}

func randomPeers(r *rand.Rand) []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	for range r.IntN(3) {
		if r.IntN(3) == 0 {
			block := &networkingv1.IPBlock{
				CIDR: pick(r, "0.0.0.0/0", "10.42.0.0/16", "10.42.1.0/24", "10.43.0.0/24", "192.0.2.0/24",
					"2001:db8::/32")}
			if block.CIDR == "0.0.0.0/0" || block.CIDR == "10.42.0.0/16" {
				for range r.IntN(3) {
					block.Except = append(block.Except, pick(r, "10.42.0.0/24", "10.42.1.2/32", "10.42.2.0/25"))
				}
			}
			peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: block})
			continue
		}
		var p networkingv1.NetworkPolicyPeer
		if r.IntN(2) == 0 {
			p.NamespaceSelector = ptr.To(randomSelector(r))
		}
		if p.NamespaceSelector == nil || r.IntN(2) == 0 {
			p.PodSelector = ptr.To(randomSelector(r))
		}
		peers = append(peers, p)
	}
	return peers
}

func randomPorts(r *rand.Rand) []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	for range r.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if r.IntN(3) > 0 {
			p.Protocol = ptr.To(pick(r, protocols...))
		}
		switch r.IntN(4) {
		case 0:
			p.Port = ptr.To(intstr.FromString(pick(r, "web", "dns", "none")))
		case 1:
			p.Port, p.EndPort = ptr.To(intstr.FromInt32(pick[int32](r, 50, 80))), ptr.To(pick[int32](r, 80, 90))
		case 2:
			p.Port = ptr.To(intstr.FromInt32(pick[int32](r, 53, 80, 81)))
		}
		ports = append(ports, p)
	}
	return ports
}

func randomPolicy(r *rand.Rand, name string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(r, testNamespaces...), Name: name},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: randomSelector(r)}}
	if r.IntN(3) > 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
		for range r.IntN(3) {
			p.Spec.Ingress = append(p.Spec.Ingress,
				networkingv1.NetworkPolicyIngressRule{From: randomPeers(r), Ports: randomPorts(r)})
		}
	}
	if len(p.Spec.PolicyTypes) == 0 || r.IntN(2) == 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		for range r.IntN(3) {
			p.Spec.Egress = append(p.Spec.Egress,
				networkingv1.NetworkPolicyEgressRule{To: randomPeers(r), Ports: randomPorts(r)})
		}
	}
	return p
}

func randomWorld(r *rand.Rand) *world {
	w := &world{namespaces: map[string]labels.Set{}, pods: map[string]*Pod{},
		policies: map[string]*networkingv1.NetworkPolicy{}}
	for _, name := range testNamespaces {
		if r.IntN(8) > 0 {
			w.namespaces[name] = randomLabels(r)
		}
	}
	for i := range r.IntN(9) {
		w.pods[fmt.Sprintf("p%d", i)] = randomPod(r, i)
	}
	for i := range r.IntN(6) {
		p := randomPolicy(r, fmt.Sprintf("n%d", i))
		w.policies[p.Namespace+"/"+p.Name] = p
	}
	return w
}

// turn brings a state to a world, in random order.
func (w *world) turn(s *state, r *rand.Rand) {
	var steps []func()
	for name := range s.namespaces {
		if _, stays := w.namespaces[name]; !stays {
			steps = append(steps, func() { s.setNamespace(name, nil) })
		}
	}
	for name, set := range w.namespaces {
		steps = append(steps, func() { s.setNamespace(name, set) })
	}
	for key := range s.pods {
		if _, stays := w.pods[key]; !stays && key != "/dns" {
			steps = append(steps, func() { s.setPod(key, nil) })
		}
	}
	for key, pod := range w.pods {
		steps = append(steps, func() { s.setPod(key, pod) })
	}
	for key := range s.policies {
		if _, stays := w.policies[key]; !stays {
			steps = append(steps, func() { s.setPolicy(key, nil) })
		}
	}
	for key, policy := range w.policies {
		steps = append(steps, func() { s.setPolicy(key, policy) })
	}
	r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		step()
	}
}
