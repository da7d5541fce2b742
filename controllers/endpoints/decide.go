package endpoints

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	slicelib "k8s.io/endpointslice"
	"k8s.io/endpointslice/util"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still read by clients that this is for.

// capacity is how many addresses one Endpoints object holds; EndpointSlices have no such limit.
const capacity = 1000

// decide returns the Endpoints object that a Service should have. is is the one it has, or nil.
func decide(service *corev1.Service, pods []*corev1.Pod, is *corev1.Endpoints) *corev1.Endpoints {
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	if is != nil {
		want = is.DeepCopy()
	}
	want.Labels = maps.Clone(service.Labels)
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[managedBy] = ManagedBy
	delete(want.Labels, corev1.IsHeadlessService)
	if service.Spec.ClusterIP == corev1.ClusterIPNone || service.Spec.ClusterIP == "" {
		want.Labels[corev1.IsHeadlessService] = ""
	}
	groups := group(service, pods)
	delete(want.Annotations, corev1.EndpointsOverCapacity)
	if truncate(groups) {
		if want.Annotations == nil {
			want.Annotations = map[string]string{}
		}
		want.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	}
	want.Subsets = subsets(groups)
	return want
}

// ports is one distinct set of ports with the addresses that serve it.
type ports struct {
	ports           []corev1.EndpointPort
	ready, notReady []corev1.EndpointAddress
}

// group sorts pods by the ports that the Service's target ports mean on them.
func group(service *corev1.Service, pods []*corev1.Pod) map[string]*ports {
	groups := map[string]*ports{}
	for _, pod := range pods {
		if !util.ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		ip := addressOf(service, pod)
		if ip == "" {
			continue
		}
		list, ok := portsOf(service, pod)
		if !ok {
			continue
		}
		key := portsKey(list)
		g := groups[key]
		if g == nil {
			g = &ports{ports: list}
			groups[key] = g
		}
		address := corev1.EndpointAddress{
			IP:        ip,
			NodeName:  &pod.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}
		if util.ShouldSetHostname(pod, service) {
			address.Hostname = pod.Spec.Hostname
		}
		if service.Spec.PublishNotReadyAddresses || util.IsPodReady(pod) {
			g.ready = append(g.ready, address)
		} else {
			g.notReady = append(g.notReady, address)
		}
	}
	return groups
}

// addressOf returns the pod's address in the Service's first family.
func addressOf(service *corev1.Service, pod *corev1.Pod) string {
	six := len(service.Spec.IPFamilies) > 0 && service.Spec.IPFamilies[0] == corev1.IPv6Protocol
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && addr.Is6() == six {
			return ip.IP
		}
	}
	return ""
}

// portsOf maps the Service's ports to the pod's. A pod that lacks a named port serves the others;
// one that lacks all of them is no endpoint, unless the Service has no ports at all.
func portsOf(service *corev1.Service, pod *corev1.Pod) ([]corev1.EndpointPort, bool) {
	var list []corev1.EndpointPort
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		number, err := slicelib.FindPort(pod, p)
		if err != nil {
			continue
		}
		list = append(list,
			corev1.EndpointPort{Name: p.Name, Port: int32(number), Protocol: p.Protocol, AppProtocol: p.AppProtocol})
	}
	slices.SortFunc(list, func(a, b corev1.EndpointPort) int { return cmp.Compare(portKey(a), portKey(b)) })
	return list, len(list) > 0 || len(service.Spec.Ports) == 0
}

func portsKey(list []corev1.EndpointPort) string {
	var b strings.Builder
	for _, p := range list {
		b.WriteString(portKey(p) + ";")
	}
	return b.String()
}

func portKey(p corev1.EndpointPort) string {
	app := ""
	if p.AppProtocol != nil {
		app = *p.AppProtocol
	}
	return fmt.Sprintf("%s/%s/%05d/%s", p.Name, p.Protocol, p.Port, app)
}

func subsets(groups map[string]*ports) []corev1.EndpointSubset {
	var out []corev1.EndpointSubset
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		if len(g.ready)+len(g.notReady) == 0 {
			continue
		}
		out = append(out, corev1.EndpointSubset{Addresses: g.ready, NotReadyAddresses: g.notReady, Ports: g.ports})
	}
	return out
}

// truncate cuts the addresses to the capacity, unready ones first.
func truncate(groups map[string]*ports) bool {
	left, cut := capacity, false
	take := func(list []corev1.EndpointAddress) []corev1.EndpointAddress {
		slices.SortFunc(list, func(a, b corev1.EndpointAddress) int { return strings.Compare(a.IP, b.IP) })
		n := min(left, len(list))
		cut = cut || n < len(list)
		left -= n
		return list[:n:n]
	}
	keys := slices.Sorted(maps.Keys(groups))
	for _, key := range keys {
		groups[key].ready = take(groups[key].ready)
	}
	for _, key := range keys {
		groups[key].notReady = take(groups[key].notReady)
	}
	return cut
}
