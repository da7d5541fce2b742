package proxy

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Rules is the treatment of new connections, independent of nftables. It is plain data: equal rules
// compare equal with reflect.DeepEqual.
type Rules struct {
	// Frontends leads a destination to the chain that chooses a backend for it.
	Frontends map[Frontend]string
	// Refused are destinations that exist without endpoints. A destination is either here or in
	// Frontends.
	Refused map[Frontend]Refusal
	// Chains by name. A chain is only named by frontends and chains of the same Rules.
	Chains map[string]Chain
	// Hairpins are local pods that may reach themselves through a service; their answer would miss
	// the address translation unless their source is hidden.
	Hairpins map[netip.Addr]struct{}
}

// Frontend is a destination as clients see it.
type Frontend struct {
	// Addr is zero for every address of this node but loopback (node ports).
	Addr     netip.Addr
	Protocol corev1.Protocol
	Port     uint16
}

// Backend is a destination as pods see it.
type Backend struct {
	Addr netip.Addr
	Port uint16
}

// Refusal is the way in which a connection is refused.
type Refusal string

const (
	// Reject answers the client at once: the service has no endpoints at all.
	Reject Refusal = "reject"
	// Drop does not answer: there are endpoints, but this node must not use them, and a load
	// balancer is to use another node.
	Drop Refusal = "drop"
)

// Chain is how a new connection finds its backend. The steps are taken in the
// order of the fields.
type Chain struct {
	// Sources, when not empty, are the only clients that are let in, besides the
	// node itself.
	Sources []netip.Prefix
	// Cluster names the chain that clients in the cluster (pods and this node) take instead of this
	// one: traffic policies apply to outside clients only.
	Cluster string
	// HideForeign gives connections from outside the pod network this node's
	// address, so that the answer comes back through here.
	HideForeign bool
	// Next names the chain to continue with; Backends is empty then.
	Next string
	// Affinity keeps a client at its backend for so long after its last
	// connection; zero for no affinity.
	Affinity time.Duration
	// Backends, sorted, of which each has the same chance. Without any, and without Next, the
	// connection is dropped.
	Backends []Backend
}

// equal is reflect.DeepEqual at a tenth of its cost: a change of one service compares the chains of
// all.
func (c Chain) equal(other Chain) bool {
	return c.Cluster == other.Cluster && c.HideForeign == other.HideForeign && c.Next == other.Next &&
		c.Affinity == other.Affinity && slices.Equal(c.Sources, other.Sources) &&
		slices.Equal(c.Backends, other.Backends)
}

// emptyRules has no services.
func emptyRules() Rules {
	return Rules{
		Frontends: map[Frontend]string{},
		Refused:   map[Frontend]Refusal{},
		Chains:    map[string]Chain{},
		Hairpins:  map[netip.Addr]struct{}{},
	}
}

// Delta is the difference between two Rules. Elements that change are both deleted and added.
type Delta struct {
	DelFrontends []Frontend
	AddFrontends map[Frontend]string
	DelRefused   []Frontend
	AddRefused   map[Frontend]Refusal
	DelHairpins  []netip.Addr
	AddHairpins  []netip.Addr
	// AddChains are new; SetChains exist and get new content.
	AddChains map[string]Chain
	SetChains map[string]Chain
	DelChains []string
	// AddAffinity and DelAffinity are chains whose affinity map is added or removed. A map whose
	// timeout changes is in both.
	AddAffinity map[string]time.Duration
	DelAffinity []string
}

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return reflect.DeepEqual(d, newDelta()) }

func newDelta() Delta {
	return Delta{
		AddFrontends: map[Frontend]string{},
		AddRefused:   map[Frontend]Refusal{},
		AddChains:    map[string]Chain{},
		SetChains:    map[string]Chain{},
		AddAffinity:  map[string]time.Duration{},
	}
}

// diff returns the changes from now to next.
func diff(now, next Rules) Delta {
	d := newDelta()
	d.DelFrontends = diffMap(now.Frontends, next.Frontends, d.AddFrontends)
	d.DelRefused = diffMap(now.Refused, next.Refused, d.AddRefused)
	for addr := range now.Hairpins {
		if _, stays := next.Hairpins[addr]; !stays {
			d.DelHairpins = append(d.DelHairpins, addr)
		}
	}
	for addr := range next.Hairpins {
		if _, there := now.Hairpins[addr]; !there {
			d.AddHairpins = append(d.AddHairpins, addr)
		}
	}
	for name, chain := range next.Chains {
		old, there := now.Chains[name]
		switch {
		case !there:
			d.AddChains[name] = chain
		case !old.equal(chain):
			d.SetChains[name] = chain
		}
		if old.Affinity != chain.Affinity {
			if old.Affinity != 0 {
				d.DelAffinity = append(d.DelAffinity, name)
			}
			if chain.Affinity != 0 {
				d.AddAffinity[name] = chain.Affinity
			}
		}
	}
	for name, chain := range now.Chains {
		if _, stays := next.Chains[name]; !stays {
			d.DelChains = append(d.DelChains, name)
			if chain.Affinity != 0 {
				d.DelAffinity = append(d.DelAffinity, name)
			}
		}
	}
	return d
}

// diffMap returns the keys to delete and fills add.
func diffMap[K, V comparable](now, next, add map[K]V) (del []K) {
	for key, value := range now {
		if wanted, stays := next[key]; !stays || wanted != value {
			del = append(del, key)
		}
	}
	for key, value := range next {
		if old, there := now[key]; !there || old != value {
			add[key] = value
		}
	}
	return del
}
