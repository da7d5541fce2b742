package endpointslicemirroring

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/utils/net"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still written by users that this is for.

// perSubset is how many addresses of one subset are mirrored, in one slice.
const perSubset = 1000

// plan has the changes that bring the slices in step with an Endpoints object.
type plan struct {
	create, update, delete []*discoveryv1.EndpointSlice
	// invalid addresses are no IP addresses, surplus ones are beyond perSubset; neither is
	// mirrored.
	invalid, surplus int
}

// decide compares the desired slices of an Endpoints object with those that mirror it.
func decide(endpoints *corev1.Endpoints, are []*discoveryv1.EndpointSlice) plan {
	var p plan
	wanted := p.group(endpoints)
	// A slice with the right ports keeps them; among equal ones the first by name does.
	left := map[slot][]*discoveryv1.EndpointSlice{}
	for _, slice := range slices.SortedFunc(slices.Values(are),
		func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }) {
		at := slot{slice.AddressType, portsKey(slice.Ports)}
		left[at] = append(left[at], slice)
	}
	var homeless []slot
	for _, at := range slices.SortedFunc(maps.Keys(wanted), slot.compare) {
		if len(left[at]) == 0 {
			homeless = append(homeless, at)
			continue
		}
		is := left[at][0]
		left[at] = left[at][1:]
		if want := written(endpoints, wanted[at], is); !equality.Semantic.DeepEqual(is, want) {
			p.update = append(p.update, want)
		}
	}
	// A slice whose ports are gone serves for new ones: proxies see one change, and no gap.
	free := map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice{}
	for _, at := range slices.SortedFunc(maps.Keys(left), slot.compare) {
		free[at.addresses] = append(free[at.addresses], left[at]...)
	}
	for _, at := range homeless {
		if same := free[at.addresses]; len(same) > 0 {
			p.update = append(p.update, written(endpoints, wanted[at], same[0]))
			free[at.addresses] = same[1:]
		} else {
			p.create = append(p.create, written(endpoints, wanted[at], nil))
		}
	}
	for _, family := range slices.Sorted(maps.Keys(free)) {
		p.delete = append(p.delete, free[family]...)
	}
	return p
}

// slot is a combination that two slices of one Service cannot share.
type slot struct {
	addresses discoveryv1.AddressType
	ports     string
}

func (s slot) compare(o slot) int {
	return cmp.Or(strings.Compare(string(s.addresses), string(o.addresses)), strings.Compare(s.ports, o.ports))
}

// content is the desired content of one slice.
type content struct {
	addresses discoveryv1.AddressType
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// place is one address of one target: pods may share an address, and targets have several.
type place struct {
	ip  string
	uid types.UID
}

// group sorts the addresses by family and by all ports that they serve, in whichever subsets these
// stand: a Service's subsets are a compact way to write pairs of an address and a port. A pair that
// is said to be ready and not to be ready is not.
func (p *plan) group(endpoints *corev1.Endpoints) map[slot]*content {
	addresses := map[place]corev1.EndpointAddress{}
	serves := map[place]map[string]bool{} // whether it is ready, by port
	ports := map[string]discoveryv1.EndpointPort{}
	for _, subset := range endpoints.Subsets {
		keys := []string{""} // an address without ports is one, too
		if len(subset.Ports) > 0 {
			keys = nil
		}
		for _, port := range subset.Ports {
			port := discoveryv1.EndpointPort{Name: &port.Name, Port: &port.Port, Protocol: &port.Protocol,
				AppProtocol: port.AppProtocol}
			ports[portKey(port)] = port
			keys = append(keys, portKey(port))
		}
		note := func(all []corev1.EndpointAddress, ready bool) {
			for _, a := range all {
				at := place{ip: a.IP}
				if a.TargetRef != nil {
					at.uid = a.TargetRef.UID
				}
				if serves[at] == nil {
					serves[at], addresses[at] = map[string]bool{}, a
				}
				for _, key := range keys {
					was, known := serves[at][key]
					serves[at][key] = ready && (was || !known)
				}
			}
		}
		note(subset.Addresses, true)
		note(subset.NotReadyAddresses, false)
	}

	groups := map[slot]*content{}
	for _, at := range slices.SortedFunc(maps.Keys(addresses), func(a, b place) int {
		return cmp.Or(strings.Compare(a.ip, b.ip), strings.Compare(string(a.uid), string(b.uid)))
	}) {
		for _, ready := range []bool{true, false} {
			p.add(groups, addresses[at], serves[at], ready, ports)
		}
	}
	return groups
}

// add notes an address under those of its ports that are, or are not, ready.
func (p *plan) add(
	groups map[slot]*content, address corev1.EndpointAddress, serves map[string]bool, ready bool,
	ports map[string]discoveryv1.EndpointPort,
) {
	var list []discoveryv1.EndpointPort
	some := false
	for _, key := range slices.Sorted(maps.Keys(serves)) {
		if serves[key] != ready {
			continue
		}
		some = true
		if key != "" {
			list = append(list, ports[key])
		}
	}
	if !some {
		return
	}
	ip := utilnet.ParseIPSloppy(address.IP)
	if ip == nil {
		p.invalid++
		return
	}
	at := slot{familyOf(ip), portsKey(list)}
	c := groups[at]
	if c == nil {
		c = &content{addresses: at.addresses, ports: list}
		groups[at] = c
	}
	if len(c.endpoints) >= perSubset {
		p.surplus++
		return
	}
	endpoint := discoveryv1.Endpoint{
		Addresses:  []string{ip.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef:  address.TargetRef,
		NodeName:   address.NodeName,
	}
	if address.Hostname != "" {
		endpoint.Hostname = &address.Hostname
	}
	c.endpoints = append(c.endpoints, endpoint)
}

func familyOf(ip net.IP) discoveryv1.AddressType {
	if ip.To4() != nil {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// written returns the slice with that content: a new one, or the existing one, changed.
func written(endpoints *corev1.Endpoints, c *content, is *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: endpoints.Namespace, GenerateName: prefix(endpoints.Name)},
		AddressType: c.addresses,
	}
	if is != nil {
		slice = is.DeepCopy()
	}
	slice.Labels = maps.Clone(endpoints.Labels)
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discoveryv1.LabelServiceName] = endpoints.Name
	slice.Labels[discoveryv1.LabelManagedBy] = ManagedBy
	slice.Annotations = maps.Clone(endpoints.Annotations)
	delete(slice.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(slice.Annotations, corev1.LastAppliedConfigAnnotation)
	slice.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(endpoints, corev1.SchemeGroupVersion.WithKind("Endpoints"))}
	slice.Ports, slice.Endpoints = c.ports, c.endpoints
	return slice
}

// prefix is the beginning of the slices' names.
func prefix(name string) string {
	if dashed := name + "-"; len(validation.NameIsDNSSubdomain(dashed, true)) == 0 {
		return dashed
	}
	return name
}

func portsKey(list []discoveryv1.EndpointPort) string {
	keys := make([]string, 0, len(list))
	for _, p := range list {
		keys = append(keys, portKey(p))
	}
	slices.Sort(keys)
	return strings.Join(keys, ";")
}

func portKey(p discoveryv1.EndpointPort) string {
	return fmt.Sprintf("%s/%s/%05d/%s", deref(p.Name), deref(p.Protocol), deref(p.Port), deref(p.AppProtocol))
}

func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
