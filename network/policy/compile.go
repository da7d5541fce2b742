package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DNS is the node's own cluster DNS. For policies it is a pod, as elsewhere: one with the label
// k8s-app=kube-dns in the namespace kube-system, at the address of the service, port 53.
type DNS struct {
	Service []netip.Addr
	// Local is where the service proxy leads the questions.
	Local netip.AddrPort
}

// Cluster DNS in policies' view.
const (
	dnsNamespace = metav1.NamespaceSystem
	dnsPort      = 53
)

var dnsLabels = labels.Set{"k8s-app": "kube-dns"}

// compiled is a NetworkPolicy with its selectors parsed. Rules refer to sets, which it describes.
type compiled struct {
	namespace string
	pods      labels.Selector
	// directions by name; a direction that the policy does not speak of is not there.
	directions map[string]Policy
	sets       map[string]setOf
}

// setOf describes the members of a set.
type setOf struct {
	// Pods in one namespace, or in those that a selector selects.
	namespace  string
	namespaces labels.Selector
	pods       labels.Selector
	// Of named ports, of all pods.
	port     string
	protocol corev1.Protocol
}

// compile translates a policy. An unreadable part, which validation excludes, allows nothing.
func compile(p *networkingv1.NetworkPolicy, dns DNS) compiled {
	c := compiled{
		namespace: p.Namespace, pods: selector(&p.Spec.PodSelector),
		directions: map[string]Policy{}, sets: map[string]setOf{},
	}
	types := p.Spec.PolicyTypes
	if len(types) == 0 { // the API server fills it in
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	if slices.Contains(types, networkingv1.PolicyTypeIngress) {
		var rules []Rule
		for _, r := range p.Spec.Ingress {
			rules = append(rules, c.rule(r.From, r.Ports))
		}
		c.directions[policyName("in", p)] = Policy{Rules: rules}
	}
	if slices.Contains(types, networkingv1.PolicyTypeEgress) {
		var rules []Rule
		for _, r := range p.Spec.Egress {
			rules = append(rules, dns.reach(c.rule(r.To, r.Ports)))
		}
		c.directions[policyName("out", p)] = Policy{Egress: true, Rules: rules}
	}
	return c
}

// policyName is the policy's own name, cut to the limit of nftables.
func policyName(direction string, p *networkingv1.NetworkPolicy) string {
	const longest = 100 // of 255, with room for the names of the policy's parts
	name := direction + "/" + p.Namespace + "/" + p.Name
	if len(name) > longest {
		name = name[:longest] + "/" + digest(name)
	}
	return name
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:10])
}

// selector parses a selector; an unreadable one selects nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

func (c *compiled) rule(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) Rule {
	r := Rule{AnyPeer: len(peers) == 0, AnyPort: len(ports) == 0}
	for i := range peers {
		if peer, ok := c.peer(&peers[i]); ok {
			r.Peers = append(r.Peers, peer)
		}
	}
	for i := range ports {
		if port, ok := c.port(&ports[i]); ok {
			r.Ports = append(r.Ports, port)
		}
	}
	return r
}

func (c *compiled) peer(p *networkingv1.NetworkPolicyPeer) (Peer, bool) {
	if p.IPBlock != nil {
		block, ok := parseBlock(p.IPBlock.CIDR)
		if !ok {
			return Peer{}, false
		}
		peer := Peer{Block: block}
		for _, raw := range p.IPBlock.Except {
			if except, ok := parseBlock(raw); ok {
				peer.Except = append(peer.Except, except)
			}
		}
		return peer, true
	}
	set := setOf{namespace: c.namespace, pods: labels.Everything()}
	if p.PodSelector != nil {
		set.pods = selector(p.PodSelector)
	}
	name := "pods/" + digest("in "+c.namespace+": "+set.pods.String())
	if p.NamespaceSelector != nil {
		set.namespace, set.namespaces = "", selector(p.NamespaceSelector)
		name = "pods/" + digest("of "+set.namespaces.String()+": "+set.pods.String())
		if unsatisfiable(set.namespaces) {
			return Peer{}, false
		}
	}
	if unsatisfiable(set.pods) {
		return Peer{}, false
	}
	c.sets[name] = set
	return Peer{Set: name}, true
}

// unsatisfiable detects labels.Nothing, whose text is that of labels.Everything.
func unsatisfiable(s labels.Selector) bool {
	_, selectable := s.Requirements()
	return !selectable
}

func parseBlock(raw string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(raw)
	if err != nil {
		return netip.Prefix{}, false
	}
	return prefix.Masked(), true
}

func (c *compiled) port(p *networkingv1.NetworkPolicyPort) (Port, bool) {
	port := Port{Protocol: corev1.ProtocolTCP, Last: 65535}
	if p.Protocol != nil {
		port.Protocol = cmp.Or(*p.Protocol, corev1.ProtocolTCP)
	}
	if p.Port == nil {
		return port, true
	}
	if p.Port.Type == intstr.String {
		port.Set = portSet(port.Protocol, p.Port.StrVal)
		port.Last = 0
		c.sets[port.Set] = setOf{port: p.Port.StrVal, protocol: port.Protocol}
		return port, true
	}
	last := p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if p.Port.IntVal < 1 || last > 65535 || last < p.Port.IntVal {
		return Port{}, false
	}
	port.First, port.Last = uint16(p.Port.IntVal), uint16(last)
	return port, true
}

func portSet(protocol corev1.Protocol, name string) string {
	return fmt.Sprintf("ports/%s/%s", protocol, name)
}

// reach adds the node's own cluster DNS to an egress rule that allows port 53 or the address of the
// service.
func (d DNS) reach(r Rule) Rule {
	if !d.Local.IsValid() {
		return r
	}
	own := netip.PrefixFrom(d.Local.Addr(), d.Local.Addr().BitLen())
	if slices.ContainsFunc(r.Peers, func(p Peer) bool { return slices.ContainsFunc(d.Service, p.contains) }) {
		r.Peers = append(r.Peers, Peer{Block: own})
	}
	for _, port := range r.Ports {
		if port.Set == "" && port.First > 0 && port.First <= dnsPort && dnsPort <= port.Last {
			r.Ports = append(r.Ports,
				Port{Protocol: port.Protocol, First: d.Local.Port(), Last: d.Local.Port(), At: own.Addr()})
		}
	}
	return r
}

// pod is cluster DNS as policies see it.
func (d DNS) pod() *Pod {
	return &Pod{Namespace: dnsNamespace, Labels: dnsLabels, Addrs: []netip.Addr{d.Local.Addr()}, Ports: []NamedPort{
		{Name: "dns", Protocol: corev1.ProtocolUDP, Number: d.Local.Port()},
		{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Number: d.Local.Port()},
	}}
}

// contains tells whether an address is in the block and in no exception of it.
func (p Peer) contains(addr netip.Addr) bool {
	return p.Set == "" && p.Block.Contains(addr) &&
		!slices.ContainsFunc(p.Except, func(except netip.Prefix) bool { return except.Contains(addr) })
}
