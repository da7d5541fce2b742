package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// book holds the wishes of each object, and the resulting rules. When an object changes, update
// visits that object, and those that claim the same destinations. The rules equal a plan of all
// objects at once.
type book struct {
	parts  map[source]*part
	claims map[Frontend][]*part // the claimants of a destination; the first has it
	// hairpins counts the parts that each address is in.
	hairpins map[netip.Addr]int
	checks   map[source]map[uint16]HealthCheck
	rules    Rules
}

func newBook() *book {
	return &book{parts: map[source]*part{}, claims: map[Frontend][]*part{}, hairpins: map[netip.Addr]int{},
		checks: map[source]map[uint16]HealthCheck{}, rules: emptyRules()}
}

// source is an object that asks for rules.
type source struct {
	kind            kind
	namespace, name string
}

// kind orders sources: services precede the node's own destinations, and those precede host ports.
type kind int

const (
	ofService kind = iota
	ofNode
	ofPod
)

// part is the wishes of one source.
type part struct {
	source  source
	created time.Time
	// rules are its own claims and all of its chains. A chain leads to chains of the same part
	// only.
	rules  Rules
	checks map[uint16]HealthCheck
}

// compareParts puts the one first that keeps a destination which both claim: the older one.
func compareParts(a, b *part) int {
	return cmp.Or(cmp.Compare(a.source.kind, b.source.kind), a.created.Compare(b.created),
		strings.Compare(a.source.namespace, b.source.namespace), strings.Compare(a.source.name, b.source.name))
}

// destinations are all that a part claims.
func (p *part) destinations(yield func(Frontend) bool) {
	for f := range p.rules.Frontends {
		if !yield(f) {
			return
		}
	}
	for f := range p.rules.Refused {
		if !yield(f) {
			return
		}
	}
}

// scope is the part of the rules that an update may change.
type scope struct {
	frontends map[Frontend]struct{}
	parts     map[*part]struct{}
	chains    map[string]struct{}
	addrs     map[netip.Addr]struct{}
}

// add takes a part into the scope with all of its chains.
func (s *scope) add(p *part) {
	s.parts[p] = struct{}{}
	for name := range p.rules.Chains {
		s.chains[name] = struct{}{}
	}
}

// view is the part of rules that is in the scope.
func (s *scope) view(r Rules) Rules {
	v := emptyRules()
	for f := range s.frontends {
		if chain, ok := r.Frontends[f]; ok {
			v.Frontends[f] = chain
		} else if refusal, ok := r.Refused[f]; ok {
			v.Refused[f] = refusal
		}
	}
	for name := range s.chains {
		if chain, ok := r.Chains[name]; ok {
			v.Chains[name] = chain
		}
	}
	for addr := range s.addrs {
		if _, ok := r.Hairpins[addr]; ok {
			v.Hairpins[addr] = struct{}{}
		}
	}
	return v
}

// update takes changed sources, nil for removed ones. It returns the changes of the rules, and the
// tracked connections that may lead to wrong backends after them.
func (b *book) update(changed map[source]*part) (Delta, staleFlows) {
	s := &scope{frontends: map[Frontend]struct{}{}, parts: map[*part]struct{}{}, chains: map[string]struct{}{},
		addrs: map[netip.Addr]struct{}{}}
	for of, next := range changed {
		for _, p := range []*part{b.parts[of], next} {
			if p == nil {
				continue
			}
			s.add(p)
			for f := range p.destinations {
				s.frontends[f] = struct{}{}
			}
			for addr := range p.rules.Hairpins {
				s.addrs[addr] = struct{}{}
			}
		}
	}
	b.addHolders(s)
	for of, next := range changed {
		b.replace(of, next)
	}
	b.addHolders(s)
	before := s.view(b.rules)
	b.publish(s)
	after := s.view(b.rules)
	return diff(before, after), staleBetween(before, after)
}

// addHolders adds the present holders of the scope's destinations to the scope.
func (b *book) addHolders(s *scope) {
	for f := range s.frontends {
		if p := b.holder(f); p != nil {
			s.add(p)
		}
	}
}

func (b *book) holder(f Frontend) *part {
	if claims := b.claims[f]; len(claims) > 0 {
		return claims[0]
	}
	return nil
}

// replace replaces the part of a source. The rules stay.
func (b *book) replace(of source, next *part) {
	if old := b.parts[of]; old != nil {
		for f := range old.destinations {
			left := slices.DeleteFunc(b.claims[f], func(p *part) bool { return p == old })
			if b.claims[f] = left; len(left) == 0 {
				delete(b.claims, f)
			}
		}
		for addr := range old.rules.Hairpins {
			if b.hairpins[addr]--; b.hairpins[addr] == 0 {
				delete(b.hairpins, addr)
			}
		}
	}
	delete(b.parts, of)
	delete(b.checks, of)
	if next == nil {
		return
	}
	b.parts[of] = next
	for f := range next.destinations {
		at, _ := slices.BinarySearchFunc(b.claims[f], next, compareParts)
		b.claims[f] = slices.Insert(b.claims[f], at, next)
	}
	for addr := range next.rules.Hairpins {
		b.hairpins[addr]++
	}
	if len(next.checks) > 0 {
		b.checks[of] = next.checks
	}
}

// publish updates the rules in the scope from the parts.
func (b *book) publish(s *scope) {
	for f := range s.frontends {
		delete(b.rules.Frontends, f)
		delete(b.rules.Refused, f)
		if p := b.holder(f); p != nil {
			if chain, ok := p.rules.Frontends[f]; ok {
				b.rules.Frontends[f] = chain
			} else {
				b.rules.Refused[f] = p.rules.Refused[f]
			}
		}
	}
	for addr := range s.addrs {
		if b.hairpins[addr] > 0 {
			b.rules.Hairpins[addr] = struct{}{}
		} else {
			delete(b.rules.Hairpins, addr)
		}
	}
	for name := range s.chains {
		delete(b.rules.Chains, name)
	}
	for p := range s.parts {
		if b.parts[p.source] != p {
			continue // it is gone, or replaced
		}
		for f, name := range p.rules.Frontends {
			if b.holder(f) == p {
				b.show(p, name)
			}
		}
	}
}

// show puts a chain of a part, and its successors, into the rules.
func (b *book) show(p *part, name string) {
	for name != "" {
		chain := p.rules.Chains[name]
		b.rules.Chains[name] = chain
		if chain.Cluster != "" { // such a chain leads no further
			b.rules.Chains[chain.Cluster] = p.rules.Chains[chain.Cluster]
		}
		name = chain.Next
	}
}

// healthChecks are those of all services.
func (b *book) healthChecks() map[uint16]HealthCheck {
	all := map[uint16]HealthCheck{}
	for _, checks := range b.checks {
		maps.Copy(all, checks)
	}
	return all
}
