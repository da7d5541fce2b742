package policy

import (
	"net/netip"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// Rules is the allowed traffic, independent of nftables. It is plain data: equal Rules compare
// equal with reflect.DeepEqual.
type Rules struct {
	// Pods are the pods of this node by address. A pod of the node that is not here is closed.
	Pods map[netip.Addr]Isolation
	// Profiles are sorted lists of policies that apply to the same pods. Traffic that none of them
	// allows is dropped.
	Profiles map[string][]string
	// Policies by name, each of one direction: those that a profile names.
	Policies map[string]Policy
	// Sets are the named sets of policies: addresses of selected pods (with port 0), and addresses
	// with the number of a named port there.
	Sets map[string]map[netip.AddrPort]struct{}
}

// Isolation names the profiles of a pod; a direction without one is open.
type Isolation struct{ Ingress, Egress string }

// Policy is one direction of a NetworkPolicy: it allows the traffic that any of its rules allows.
type Policy struct {
	Egress bool
	Rules  []Rule
}

// Rule allows connections with one of the peers at one of the ports.
type Rule struct {
	AnyPeer bool
	Peers   []Peer
	AnyPort bool
	Ports   []Port
}

// Peer is a set of pods, or a block of addresses.
type Peer struct {
	Set    string
	Block  netip.Prefix // where Set is empty
	Except []netip.Prefix
}

// Port is a port of the connection's server: a range, or the members of a set of named ports.
type Port struct {
	Protocol    corev1.Protocol
	First, Last uint16 // 0 and 65535 mean the protocol as a whole
	Set         string // when not empty, in place of the range
	// At limits the port to servers at one address; not valid for all.
	At netip.Addr
}

func emptyRules() Rules {
	return Rules{
		Pods:     map[netip.Addr]Isolation{},
		Profiles: map[string][]string{},
		Policies: map[string]Policy{},
		Sets:     map[string]map[netip.AddrPort]struct{}{},
	}
}

// touched is the possible difference between two Rules.
type touched struct {
	pods     map[netip.Addr]struct{}
	profiles map[string]struct{}
	policies map[string]struct{}
	sets     map[string]map[netip.AddrPort]struct{}
}

func nothing() touched {
	return touched{
		pods:     map[netip.Addr]struct{}{},
		profiles: map[string]struct{}{},
		policies: map[string]struct{}{},
		sets:     map[string]map[netip.AddrPort]struct{}{},
	}
}

func (t touched) element(set string, element netip.AddrPort) {
	t.set(set)[element] = struct{}{}
}

func (t touched) set(name string) map[netip.AddrPort]struct{} {
	if t.sets[name] == nil {
		t.sets[name] = map[netip.AddrPort]struct{}{}
	}
	return t.sets[name]
}

// everything is all that Rules hold.
func everything(r Rules) touched {
	all := nothing()
	for addr := range r.Pods {
		all.pods[addr] = struct{}{}
	}
	for name := range r.Profiles {
		all.profiles[name] = struct{}{}
	}
	for name := range r.Policies {
		all.policies[name] = struct{}{}
	}
	for name, members := range r.Sets {
		all.set(name)
		for element := range members {
			all.element(name, element)
		}
	}
	return all
}

// Delta is the difference between two Rules.
type Delta struct {
	AddSets, DelSets         []string
	AddElements, DelElements map[string][]netip.AddrPort // of sets that stay, and of new ones
	// SetPolicies are new or changed, with their former value.
	SetPolicies, DelPolicies map[string]change
	AddProfiles              map[string][]string
	DelProfiles              []string
	SetPods                  map[netip.Addr]isolationChange
}

type change struct{ from, to *Policy }

// isolationChange has nil for a pod that is not there.
type isolationChange struct{ from, to *Isolation }

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool {
	return len(d.AddSets)+len(d.DelSets)+len(d.AddElements)+len(d.DelElements)+
		len(d.SetPolicies)+len(d.DelPolicies)+len(d.AddProfiles)+len(d.DelProfiles)+len(d.SetPods) == 0
}

// diff returns the changes from now to next, which differ only in the touched parts.
func diff(now, next Rules, t touched) Delta {
	d := Delta{
		AddElements: map[string][]netip.AddrPort{}, DelElements: map[string][]netip.AddrPort{},
		SetPolicies: map[string]change{}, DelPolicies: map[string]change{},
		AddProfiles: map[string][]string{}, SetPods: map[netip.Addr]isolationChange{},
	}
	for name, elements := range t.sets {
		old, had := now.Sets[name]
		wanted, has := next.Sets[name]
		switch {
		case had && !has:
			d.DelSets = append(d.DelSets, name)
			continue
		case has && !had:
			d.AddSets = append(d.AddSets, name)
		}
		for element := range elements {
			_, before := old[element]
			_, after := wanted[element]
			switch {
			case after && !before:
				d.AddElements[name] = append(d.AddElements[name], element)
			case before && !after:
				d.DelElements[name] = append(d.DelElements[name], element)
			}
		}
	}
	for name := range t.policies {
		old, had := now.Policies[name]
		wanted, has := next.Policies[name]
		switch {
		case had && !has:
			d.DelPolicies[name] = change{from: &old}
		case has && !had:
			d.SetPolicies[name] = change{to: &wanted}
		case has && !reflect.DeepEqual(old, wanted):
			d.SetPolicies[name] = change{from: &old, to: &wanted}
		}
	}
	for name := range t.profiles {
		_, had := now.Profiles[name]
		wanted, has := next.Profiles[name] // its name determines its contents
		switch {
		case had && !has:
			d.DelProfiles = append(d.DelProfiles, name)
		case has && !had:
			d.AddProfiles[name] = wanted
		}
	}
	for addr := range t.pods {
		var c isolationChange
		if old, had := now.Pods[addr]; had {
			c.from = &old
		}
		if wanted, has := next.Pods[addr]; has {
			c.to = &wanted
		}
		if !reflect.DeepEqual(c.from, c.to) {
			d.SetPods[addr] = c
		}
	}
	return d
}

// take makes r equal to next where it was touched.
func (r Rules) take(next Rules, t touched) {
	takeMap(r.Pods, next.Pods, t.pods)
	takeMap(r.Profiles, next.Profiles, t.profiles)
	takeMap(r.Policies, next.Policies, t.policies)
	for name, elements := range t.sets {
		wanted, has := next.Sets[name]
		if !has {
			delete(r.Sets, name)
			continue
		}
		if r.Sets[name] == nil {
			r.Sets[name] = map[netip.AddrPort]struct{}{}
		}
		takeMap(r.Sets[name], wanted, elements)
	}
}

func takeMap[K comparable, V any](to, from map[K]V, keys map[K]struct{}) {
	for key := range keys {
		if value, has := from[key]; has {
			to[key] = value
		} else {
			delete(to, key)
		}
	}
}
