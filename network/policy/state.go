package policy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Pod is the policies' view of a pod with its own address.
type Pod struct {
	Namespace string
	Labels    labels.Set
	Addrs     []netip.Addr
	Ports     []NamedPort
	// Local pods are on this node, which filters for them. Of two at one address the later holds
	// it.
	Local bool
	Since uint64
}

// NamedPort is a port of a container.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Number   uint16
}

// state translates the cluster's objects into Rules, one change at a time. The cost of a change
// grows with the affected objects, not with the cluster. The Rules depend only on the present
// objects, not on their order. They have only policies that select a pod of this node.
type state struct {
	dns        DNS
	namespaces map[string]labels.Set
	pods       map[string]*Pod // by namespace/name
	policies   map[string]*compiled
	sets       map[string]*set
	holders    map[netip.Addr]map[string]struct{} // the local pods at an address, by namespace/name

	selecting map[netip.Addr][]string // policies that hold for a local address, sorted
	uses      map[string]int          // addresses for which a policy holds
	profiles  map[string]int          // addresses that a profile holds for, counted by direction

	rules   Rules
	touched touched
}

// set is a set that policies in use refer to.
type set struct {
	setOf
	uses    int
	members map[netip.AddrPort]int // how many pods account for each
}

func newState(dns DNS) *state {
	s := &state{
		dns: dns, namespaces: map[string]labels.Set{}, pods: map[string]*Pod{}, policies: map[string]*compiled{},
		sets: map[string]*set{}, holders: map[netip.Addr]map[string]struct{}{}, selecting: map[netip.Addr][]string{},
		uses: map[string]int{}, profiles: map[string]int{}, rules: emptyRules(), touched: nothing(),
	}
	if dns.Local.IsValid() {
		s.setPod("/dns", dns.pod()) // no pod has such a name
	}
	return s
}

// take returns the parts touched since its last call.
func (s *state) take() touched {
	t := s.touched
	s.touched = nothing()
	return t
}

// setNamespace notes the labels of a namespace; nil when it is gone.
func (s *state) setNamespace(name string, to labels.Set) {
	from, had := s.namespaces[name]
	if had == (to != nil) && maps.Equal(from, to) {
		return
	}
	move := func(by int) {
		for _, pod := range s.pods {
			if pod.Namespace != name {
				continue
			}
			for setName, set := range s.sets {
				if set.namespaces != nil {
					s.count(setName, set, pod, by)
				}
			}
		}
	}
	move(-1)
	if to != nil {
		s.namespaces[name] = to
	} else {
		delete(s.namespaces, name)
	}
	move(1)
}

// setPod notes a pod; nil when it is gone.
func (s *state) setPod(key string, to *Pod) {
	from := s.pods[key]
	if reflect.DeepEqual(from, to) {
		return
	}
	for name, set := range s.sets {
		s.count(name, set, to, 1)
		s.count(name, set, from, -1)
	}
	if to != nil {
		s.pods[key] = to
	} else {
		delete(s.pods, key)
	}
	concerned := map[netip.Addr]struct{}{}
	for _, addr := range from.localAddrs() {
		delete(s.holders[addr], key)
		concerned[addr] = struct{}{}
	}
	for _, addr := range to.localAddrs() {
		if s.holders[addr] == nil {
			s.holders[addr] = map[string]struct{}{}
		}
		s.holders[addr][key] = struct{}{}
		concerned[addr] = struct{}{}
	}
	for addr := range concerned {
		s.isolate(addr)
	}
}

func (p *Pod) localAddrs() []netip.Addr {
	if p == nil || !p.Local {
		return nil
	}
	return p.Addrs
}

// setPolicy notes a policy; nil when it is gone.
func (s *state) setPolicy(key string, to *networkingv1.NetworkPolicy) {
	from := s.policies[key]
	if from == nil && to == nil {
		return
	}
	used := s.uses[key] > 0
	if to == nil {
		// The policies release it first; the last one also releases its sets.
		from.pods = labels.Nothing()
		s.isolateAll(from.namespace)
		delete(s.policies, key)
		return
	}
	next := compile(to, s.dns)
	s.policies[key] = &next
	if used {
		s.enable(&next)
		s.disable(from)
		for name, policy := range next.directions { // disable has removed those of the same name
			s.rules.Policies[name] = policy
			s.touched.policies[name] = struct{}{}
		}
	}
	s.isolateAll(next.namespace)
}

// isolateAll updates all local pods of a namespace.
func (s *state) isolateAll(namespace string) {
	for addr := range s.holders {
		if _, pod := s.holder(addr); pod != nil && pod.Namespace == namespace {
			s.isolate(addr)
		}
	}
}

// holder returns the local pod that an address belongs to, or nil.
func (s *state) holder(addr netip.Addr) (key string, pod *Pod) {
	for candidate := range s.holders[addr] {
		p := s.pods[candidate]
		if pod == nil || p.Since > pod.Since || p.Since == pod.Since && candidate > key {
			key, pod = candidate, p
		}
	}
	return key, pod
}

// isolate finds the policies that hold for a local address.
func (s *state) isolate(addr netip.Addr) {
	_, pod := s.holder(addr)
	var selecting []string
	if pod == nil {
		delete(s.holders, addr)
	} else {
		for key, policy := range s.policies {
			if policy.namespace == pod.Namespace && policy.pods.Matches(pod.Labels) {
				selecting = append(selecting, key)
			}
		}
		slices.Sort(selecting)
	}
	before := s.selecting[addr]
	for _, key := range selecting {
		if s.uses[key]++; s.uses[key] == 1 {
			s.enable(s.policies[key])
		}
	}
	var isolation *Isolation
	if pod != nil {
		s.selecting[addr] = selecting
		isolation = &Isolation{Ingress: s.profile(selecting, false), Egress: s.profile(selecting, true)}
	} else {
		delete(s.selecting, addr)
	}
	s.setIsolation(addr, isolation)
	for _, key := range before {
		if s.uses[key]--; s.uses[key] == 0 {
			delete(s.uses, key)
			s.disable(s.policies[key])
		}
	}
}

// profile returns the name of the profile that policies make in one direction; "" without any.
func (s *state) profile(selecting []string, egress bool) string {
	var names []string
	for _, key := range selecting {
		for name, policy := range s.policies[key].directions {
			if policy.Egress == egress {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	profile := "profile/" + digest(strings.Join(names, " "))
	if s.rules.Profiles[profile] == nil {
		s.rules.Profiles[profile] = names
		s.touched.profiles[profile] = struct{}{}
	}
	return profile
}

func (s *state) setIsolation(addr netip.Addr, to *Isolation) {
	from, had := s.rules.Pods[addr]
	hold := func(isolation Isolation, by int) {
		for _, name := range []string{isolation.Ingress, isolation.Egress} {
			if name == "" {
				continue
			}
			if s.profiles[name] += by; s.profiles[name] == 0 {
				delete(s.profiles, name)
				delete(s.rules.Profiles, name)
				s.touched.profiles[name] = struct{}{}
			}
		}
	}
	if to != nil {
		hold(*to, 1)
		s.rules.Pods[addr] = *to
	} else {
		delete(s.rules.Pods, addr)
	}
	if had {
		hold(from, -1)
	}
	s.touched.pods[addr] = struct{}{}
}

// enable puts a policy and its sets into the rules.
func (s *state) enable(c *compiled) {
	for name, of := range c.sets {
		if s.sets[name] == nil {
			s.sets[name] = &set{setOf: of, members: map[netip.AddrPort]int{}}
			s.rules.Sets[name] = map[netip.AddrPort]struct{}{}
			s.touched.set(name)
			for _, pod := range s.pods {
				s.count(name, s.sets[name], pod, 1)
			}
		}
		s.sets[name].uses++
	}
	for name, policy := range c.directions {
		s.rules.Policies[name] = policy
		s.touched.policies[name] = struct{}{}
	}
}

// disable takes a policy, and sets that no other one refers to, out of the rules.
func (s *state) disable(c *compiled) {
	for name := range c.sets {
		if s.sets[name].uses--; s.sets[name].uses == 0 {
			s.touched.set(name)
			for element := range s.sets[name].members { // the set may come back before the kernel is updated
				s.touched.element(name, element)
			}
			delete(s.sets, name)
			delete(s.rules.Sets, name)
		}
	}
	for name := range c.directions {
		delete(s.rules.Policies, name)
		s.touched.policies[name] = struct{}{}
	}
}

// count adds a pod's elements to a set, or removes them.
func (s *state) count(name string, set *set, pod *Pod, by int) {
	for _, element := range s.elements(set, pod) {
		set.members[element] += by
		switch n := set.members[element]; {
		case n == 0:
			delete(set.members, element)
			delete(s.rules.Sets[name], element)
			s.touched.element(name, element)
		case n == by: // the first one
			s.rules.Sets[name][element] = struct{}{}
			s.touched.element(name, element)
		}
	}
}

// elements returns a pod's elements of a set.
func (s *state) elements(set *set, pod *Pod) []netip.AddrPort {
	if pod == nil {
		return nil
	}
	var elements []netip.AddrPort
	if set.port != "" {
		for _, port := range pod.Ports {
			if port.Name == set.port && port.Protocol == set.protocol {
				for _, addr := range pod.Addrs {
					elements = append(elements, netip.AddrPortFrom(addr, port.Number))
				}
			}
		}
		return elements
	}
	if set.namespaces == nil {
		if pod.Namespace != set.namespace {
			return nil
		}
	} else if in, known := s.namespaces[pod.Namespace]; !known || !set.namespaces.Matches(in) {
		return nil
	}
	if !set.pods.Matches(pod.Labels) {
		return nil
	}
	for _, addr := range pod.Addrs {
		elements = append(elements, netip.AddrPortFrom(addr, 0))
	}
	return elements
}
