// Package endpoints knows the addresses behind the ports of Services, for the data plane. They
// change apart from the routes.
package endpoints

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/model"
)

// Set has a pool for each port that a route names, for good; the pool changes, and routes do not.
type Set struct {
	lookup Lookup
	mu     sync.Mutex
	pools  map[types.NamespacedName]map[portKey]*Pool
}

// Lookup returns a Service with its slices; nil if it does not exist.
type Lookup func(types.NamespacedName) (*corev1.Service, []*discoveryv1.EndpointSlice)

type portKey struct {
	number int32
	name   string
}

// Pool has the endpoints of one port of a Service.
type Pool struct {
	current atomic.Pointer[State]
	next    atomic.Uint32
}

// State are the endpoints of one moment.
type State struct {
	// Known is false where there is no such Service or port.
	Known    bool
	Protocol model.Protocol
	Addrs    []netip.AddrPort
}

var unknown = &State{}

// New returns an empty set.
func New(lookup Lookup) *Set {
	return &Set{lookup: lookup, pools: map[types.NamespacedName]map[portKey]*Pool{}}
}

// Pool returns the pool of a port.
func (e *Set) Pool(b *model.Backend) *Pool {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.pools[b.Service]
	if of == nil {
		of = map[portKey]*Pool{}
		e.pools[b.Service] = of
	}
	key := portKey{b.Port, b.PortName}
	if of[key] == nil {
		of[key] = &Pool{}
		of[key].current.Store(e.of(key, b.Service))
		of[key].next.Store(rand.Uint32())
	}
	return of[key]
}

func (e *Set) of(key portKey, name types.NamespacedName) *State {
	service, slices := e.lookup(name)
	return endpointsOf(key, service, slices)
}

// Update takes over the present endpoints of a Service.
func (e *Set) Update(name types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pools[name]) == 0 {
		return
	}
	service, slices := e.lookup(name)
	for key, p := range e.pools[name] {
		p.current.Store(endpointsOf(key, service, slices))
	}
}

func endpointsOf(key portKey, service *corev1.Service, all []*discoveryv1.EndpointSlice) *State {
	if service == nil {
		return unknown
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return key.name != "" && p.Name == key.name || key.name == "" && p.Port == key.number
	})
	if i < 0 {
		return unknown
	}
	port := &service.Spec.Ports[i]
	var ready, serving []netip.AddrPort
	for _, slice := range all {
		number := slicePort(slice, port.Name)
		if number == 0 {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			c := endpoint.Conditions
			for _, address := range endpoint.Addresses {
				ip, err := netip.ParseAddr(address)
				if err != nil {
					continue
				}
				at := netip.AddrPortFrom(ip, number)
				switch {
				case c.Ready == nil || *c.Ready:
					ready = append(ready, at)
				case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
					serving = append(serving, at)
				}
			}
		}
	}
	// Pods that are ending serve only while no others do.
	if len(ready) == 0 {
		ready = serving
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return &State{Known: true, Protocol: protocolOf(port), Addrs: oneFamily(slices.Compact(ready))}
}

// oneFamily leaves one address of each pod of a Service with two families.
func oneFamily(addrs []netip.AddrPort) []netip.AddrPort {
	four := slices.IndexFunc(addrs, func(a netip.AddrPort) bool { return a.Addr().Is6() })
	if four <= 0 {
		return addrs
	}
	return addrs[:four] // IPv4 sorts first
}

func slicePort(slice *discoveryv1.EndpointSlice, name string) uint16 {
	for _, p := range slice.Ports {
		if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		if p.Name == nil && name == "" || p.Name != nil && *p.Name == name {
			return uint16(*p.Port)
		}
	}
	return 0
}

func protocolOf(port *corev1.ServicePort) model.Protocol {
	if port.AppProtocol == nil {
		return model.HTTP1
	}
	// Names without a slash are those of IANA, which has no upper and lower case.
	switch strings.ToLower(*port.AppProtocol) {
	case "kubernetes.io/h2c":
		return model.H2C
	case "https", "kubernetes.io/wss":
		return model.TLS
	}
	return model.HTTP1
}

// State returns the endpoints of now.
func (p *Pool) State() *State { return p.current.Load() }

// Pick returns the next endpoint in turn that is not among the tried ones.
func (p *Pool) Pick(tried []netip.AddrPort) (netip.AddrPort, bool) {
	addrs := p.State().Addrs
	if len(addrs) == 0 {
		return netip.AddrPort{}, false
	}
	start := p.next.Add(1)
	for i := range addrs {
		a := addrs[(int(start%uint32(len(addrs)))+i)%len(addrs)]
		if !slices.Contains(tried, a) {
			return a, true
		}
	}
	return netip.AddrPort{}, false
}
