package dns

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// state is the source of the zone: the cluster's namespaces, services and endpoints from their last
// events. Names in the API are lower case, and so are all keys.
type state struct {
	mu         sync.RWMutex
	namespaces map[string]bool
	services   map[types.NamespacedName]*service
	slices     map[types.NamespacedName]map[string]*slice // by service, then by the slice's name
	owners     map[types.NamespacedName]types.NamespacedName
	// holders has the services of an address, and how often each has it.
	holders map[netip.Addr][]holder
	// populated counts the services of a namespace: a namespace with any exists.
	populated map[string]int
	version   uint64 // counts changes
}

// service is the source of a service's names.
type service struct {
	addrs        []netip.Addr // the cluster's addresses
	headless     bool
	externalName string
	unready      bool // publishNotReadyAddresses
	ports        []port
}

type port struct {
	name, protocol string // protocol in lower case
	number         uint16
}

// slice is one EndpointSlice of a service.
type slice struct {
	ports     []port
	endpoints []endpoint
}

type endpoint struct {
	addrs    []netip.Addr
	hostname string
	ready    bool
}

func newState() *state {
	return &state{
		namespaces: map[string]bool{},
		services:   map[types.NamespacedName]*service{},
		slices:     map[types.NamespacedName]map[string]*slice{},
		owners:     map[types.NamespacedName]types.NamespacedName{},
		holders:    map[netip.Addr][]holder{},
		populated:  map[string]int{},
	}
}

func keyOf(object interface{ GetNamespace() string }, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: name}
}

func (s *state) setNamespace(name string, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	if exists {
		s.namespaces[name] = true
	} else {
		delete(s.namespaces, name)
	}
}

func (s *state) setService(object *corev1.Service) {
	s.addService(keyOf(object, object.Name), serviceOf(object))
}

func (s *state) addService(key types.NamespacedName, one *service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropService(key)
	s.services[key] = one
	s.populated[key.Namespace]++
	s.hold(key, one.addrs, 1)
	s.version++
}

func (s *state) deleteService(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropService(key)
	s.version++
}

func (s *state) dropService(key types.NamespacedName) {
	old := s.services[key]
	if old == nil {
		return
	}
	s.hold(key, old.addrs, -1)
	delete(s.services, key)
	if s.populated[key.Namespace]--; s.populated[key.Namespace] == 0 {
		delete(s.populated, key.Namespace)
	}
}

func (s *state) setSlice(object *discoveryv1.EndpointSlice) {
	own := keyOf(object, object.Name)
	name := object.Labels[discoveryv1.LabelServiceName]
	if name == "" || object.AddressType == discoveryv1.AddressTypeFQDN {
		s.deleteSlice(own)
		return
	}
	s.addSlice(own, keyOf(object, name), sliceOf(object))
}

func (s *state) addSlice(own, key types.NamespacedName, one *slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropSlice(own) // it may have been another service's
	s.version++
	if s.slices[key] == nil {
		s.slices[key] = map[string]*slice{}
	}
	s.slices[key][own.Name] = one
	s.owners[own] = key
	for _, e := range one.endpoints {
		s.hold(key, e.addrs, 1)
	}
}

func (s *state) deleteSlice(own types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropSlice(own)
	s.version++
}

func (s *state) dropSlice(own types.NamespacedName) {
	key, there := s.owners[own]
	if !there {
		return
	}
	for _, e := range s.slices[key][own.Name].endpoints {
		s.hold(key, e.addrs, -1)
	}
	delete(s.owners, own)
	delete(s.slices[key], own.Name)
	if len(s.slices[key]) == 0 {
		delete(s.slices, key)
	}
}

// holder is a service that has an address, so often. Few have the same one.
type holder struct {
	key   types.NamespacedName
	times int
}

// hold counts that a service has addresses more, or less, often.
func (s *state) hold(key types.NamespacedName, addrs []netip.Addr, by int) {
	for _, addr := range addrs {
		of := s.holders[addr]
		i := slices.IndexFunc(of, func(h holder) bool { return h.key == key })
		if i < 0 {
			s.holders[addr] = append(of, holder{key, by})
			continue
		}
		if of[i].times += by; of[i].times == 0 {
			of = slices.Delete(of, i, i+1)
		}
		if len(of) == 0 {
			delete(s.holders, addr)
		} else {
			s.holders[addr] = of
		}
	}
}

func serviceOf(object *corev1.Service) *service {
	one := &service{unready: object.Spec.PublishNotReadyAddresses}
	switch {
	case object.Spec.Type == corev1.ServiceTypeExternalName:
		one.externalName = object.Spec.ExternalName
		return one
	case object.Spec.ClusterIP == corev1.ClusterIPNone:
		one.headless = true
	default:
		for _, text := range append([]string{object.Spec.ClusterIP}, object.Spec.ClusterIPs...) {
			if addr, err := netip.ParseAddr(text); err == nil && !slices.Contains(one.addrs, addr.Unmap()) {
				one.addrs = append(one.addrs, addr.Unmap())
			}
		}
	}
	for _, p := range object.Spec.Ports {
		one.ports = append(one.ports, port{
			name: p.Name, protocol: strings.ToLower(string(cmp.Or(p.Protocol, corev1.ProtocolTCP))),
			number: uint16(p.Port),
		})
	}
	return one
}

func sliceOf(object *discoveryv1.EndpointSlice) *slice {
	one := &slice{}
	for _, p := range object.Ports {
		if p.Port == nil {
			continue
		}
		one.ports = append(one.ports, port{
			name: ptr.Deref(p.Name, ""), protocol: strings.ToLower(string(ptr.Deref(p.Protocol, corev1.ProtocolTCP))),
			number: uint16(*p.Port),
		})
	}
	for _, e := range object.Endpoints {
		converted := endpoint{hostname: ptr.Deref(e.Hostname, ""), ready: ptr.Deref(e.Conditions.Ready, true)}
		for _, text := range e.Addresses {
			if addr, err := netip.ParseAddr(text); err == nil {
				converted.addrs = append(converted.addrs, addr.Unmap())
			}
		}
		one.endpoints = append(one.endpoints, converted)
	}
	return one
}

// touch counts a change of data outside the state that belongs to it.
func (s *state) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
}

// changes counts them.
func (s *state) changes() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// namespaceExists tells whether names below a namespace may exist. The caller holds mu.
func (s *state) namespaceExists(name string) bool { return s.namespaces[name] || s.populated[name] > 0 }

// visit calls f for each address of each endpoint that a service shows. The caller holds mu.
func (s *state) visit(key types.NamespacedName, f func(in *slice, hostname string, addr netip.Addr)) {
	of := s.services[key]
	if of == nil || of.externalName != "" {
		return
	}
	for _, in := range s.slices[key] {
		for _, e := range in.endpoints {
			if !e.ready && !of.unready {
				continue
			}
			for _, addr := range e.addrs {
				f(in, e.hostname, addr)
			}
		}
	}
}
