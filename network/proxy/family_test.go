package proxy

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/barque/barque/network/nft"
)

// mirror makes an IPv6 address out of an IPv4 one.
func mirror(addr netip.Addr) netip.Addr {
	if !addr.IsValid() {
		return addr
	}
	mapped := addr.As16()
	copy(mapped[:12], []byte{0xfd})
	mapped[10], mapped[11] = 0, 0
	return netip.AddrFrom16(mapped)
}

var literal = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+(/\d+)?`)

// mirrored is an object with IPv6 addresses in place of IPv4 ones.
func mirrored[T any](t *testing.T, object *T) *T {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	text = literal.ReplaceAllFunc(text, func(found []byte) []byte {
		if prefix, err := netip.ParsePrefix(string(found)); err == nil {
			return []byte(netip.PrefixFrom(mirror(prefix.Addr()), prefix.Bits()+96).String())
		}
		return []byte(mirror(netip.MustParseAddr(string(found))).String())
	})
	text = []byte(strings.ReplaceAll(string(text), `"IPv4"`, `"IPv6"`))
	into := new(T)
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
	return into
}

func mirrorSnapshot(t *testing.T, s Snapshot) Snapshot {
	t.Helper()
	m := Snapshot{NodeName: s.NodeName, Zone: s.Zone, Family: nft.IPv6}
	for _, o := range s.Services {
		m.Services = append(m.Services, mirrored(t, o))
	}
	for _, o := range s.Slices {
		m.Slices = append(m.Slices, mirrored(t, o))
	}
	for _, o := range s.Pods {
		m.Pods = append(m.Pods, mirrored(t, o))
	}
	return m
}

func mirrorRules(r Rules) Rules {
	m := emptyRules()
	frontend := func(f Frontend) Frontend {
		f.Addr = mirror(f.Addr)
		return f
	}
	for f, chain := range r.Frontends {
		m.Frontends[frontend(f)] = chain
	}
	for f, refusal := range r.Refused {
		m.Refused[frontend(f)] = refusal
	}
	for addr := range r.Hairpins {
		m.Hairpins[mirror(addr)] = struct{}{}
	}
	for name, chain := range r.Chains {
		var backends []Backend
		for _, backend := range chain.Backends {
			backends = append(backends, Backend{Addr: mirror(backend.Addr), Port: backend.Port})
		}
		var sources []netip.Prefix
		for _, source := range chain.Sources {
			sources = append(sources, netip.PrefixFrom(mirror(source.Addr()), source.Bits()+96))
		}
		chain.Backends, chain.Sources = backends, sources
		m.Chains[name] = chain
	}
	return m
}

// TestPlanOfBothFamilies: a cluster with IPv6 addresses in place of IPv4 ones has the same rules,
// and each family sees nothing of the other one.
func TestPlanOfBothFamilies(t *testing.T) {
	for seed := range uint64(300) {
		s := randomSnapshot(rand.New(rand.NewPCG(seed, 8)))
		want4 := plan(s)
		want6 := mirrorRules(want4)
		m := mirrorSnapshot(t, s)
		if got := plan(m); !reflect.DeepEqual(got, want6) {
			t.Fatalf("seed %d: got\n%+v\nwant\n%+v", seed, got, want6)
		}
		// One cluster with both: each Service and pod has an address of each family, and a slice
		// for each.
		both := Snapshot{NodeName: s.NodeName, Zone: s.Zone,
			Slices: append(append([]*discoveryv1.EndpointSlice(nil), s.Slices...), m.Slices...)}
		for i, service := range s.Services {
			service, other := service.DeepCopy(), m.Services[i]
			service.Spec.ClusterIPs = []string{service.Spec.ClusterIP, other.Spec.ClusterIP}
			service.Spec.ExternalIPs = append(service.Spec.ExternalIPs, other.Spec.ExternalIPs...)
			service.Spec.LoadBalancerSourceRanges = append(service.Spec.LoadBalancerSourceRanges,
				other.Spec.LoadBalancerSourceRanges...)
			service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress,
				other.Status.LoadBalancer.Ingress...)
			both.Services = append(both.Services, service)
		}
		for i, pod := range s.Pods {
			pod := pod.DeepCopy()
			pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}, {IP: m.Pods[i].Status.PodIP}}
			both.Pods = append(both.Pods, pod)
		}
		for family, want := range map[nft.Family]Rules{nft.IPv4: want4, nft.IPv6: want6} {
			both.Family = family
			if got := plan(both); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, %v: got\n%+v\nwant\n%+v", seed, family, got, want)
			}
		}
	}
}

// TestHostPortAddresses: a host port at one address is in the table of its family only.
func TestHostPortAddresses(t *testing.T) {
	for hostIP, want := range map[string][2]bool{"": {true, true}, "0.0.0.0": {true, false}, "::": {false, true},
		"192.0.2.1": {true, false}, "2001:db8::1": {false, true}} {
		pod := &corev1.Pod{
			Spec: corev1.PodSpec{NodeName: here,
				Containers: []corev1.Container{
					{Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 90, HostIP: hostIP}}}}},
			Status: corev1.PodStatus{PodIP: "10.42.1.2", PodIPs: []corev1.PodIP{{IP: "10.42.1.2"}, {IP: "fd00::2"}}},
		}
		for i, family := range []nft.Family{nft.IPv4, nft.IPv6} {
			if got := len(
				plan(
					Snapshot{NodeName: here, Family: family,
						Pods: []*corev1.Pod{pod}}).Frontends) == 1; got != want[i] {
				t.Errorf("hostIP %q, %v: %v, want %v", hostIP, family, got, want[i])
			}
		}
	}
}
