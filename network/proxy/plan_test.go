package proxy

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/balancers"
)

const here = "node-1" // the node that plans

func service(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.43.0.10",
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func nodePort(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.Ports[0].NodePort = 30080
}

func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
}

// endpoint of the web service, in one of three states.
type state int

const (
	ready state = iota
	notReady
	ending // still serving while it terminates
)

func endpoint(ip, node string, s state) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{ip}, NodeName: ptr.To(node),
		Conditions: discoveryv1.EndpointConditions{
			Ready: ptr.To(s == ready), Serving: ptr.To(s != notReady), Terminating: ptr.To(s == ending),
		},
	}
}

func slice(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-abc",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints: endpoints,
	}
}

func frontend(ip string, port uint16) Frontend {
	f := Frontend{Protocol: corev1.ProtocolTCP, Port: port}
	if ip != "" {
		f.Addr = netip.MustParseAddr(ip)
	}
	return f
}

func backends(ips ...string) []Backend {
	var all []Backend
	for _, ip := range ips {
		all = append(all, Backend{Addr: netip.MustParseAddr(ip), Port: 8080})
	}
	return all
}

func TestPlan(t *testing.T) {
	const (
		local, remote = "10.42.1.5", "10.42.2.5"
		all           = "all/default/web/TCP/80"
		internal      = "internal/default/web/TCP/80"
		external      = "external/default/web/TCP/80"
		balancer      = "balancer/default/web/TCP/80"
	)
	cluster := frontend("10.43.0.10", 80)
	node := frontend("", 30080)
	both := slice(endpoint(remote, "node-2", ready), endpoint(local, here, ready))
	remoteOnly := slice(endpoint(remote, "node-2", ready))
	allChain := Chain{HideForeign: true, Backends: backends(local, remote)}

	for name, test := range map[string]struct {
		service   *corev1.Service
		slices    []*discoveryv1.EndpointSlice
		frontends map[Frontend]string
		refused   map[Frontend]Refusal
		chains    map[string]Chain
		hairpins  []string
	}{
		"cluster address": {
			service: service(), slices: []*discoveryv1.EndpointSlice{both},
			frontends: map[Frontend]string{cluster: all}, chains: map[string]Chain{all: allChain},
			hairpins: []string{local},
		},
		"node port shares the chain": {
			service: service(nodePort), slices: []*discoveryv1.EndpointSlice{both},
			frontends: map[Frontend]string{cluster: all, node: all}, chains: map[string]Chain{all: allChain},
			hairpins: []string{local},
		},
		"no endpoints: rejected": {
			service: service(nodePort),
			refused: map[Frontend]Refusal{cluster: Reject, node: Reject},
		},
		"unready endpoints are none": {
			service: service(), slices: []*discoveryv1.EndpointSlice{slice(endpoint(local, here, notReady))},
			refused: map[Frontend]Refusal{cluster: Reject},
		},
		"ending endpoints only when nobody is ready": {
			service: service(),
			slices: []*discoveryv1.EndpointSlice{
				slice(endpoint(local, here, ending), endpoint(remote, "node-2", ready))},
			frontends: map[Frontend]string{cluster: all},
			chains:    map[string]Chain{all: {HideForeign: true, Backends: backends(remote)}},
			hairpins:  []string{local},
		},
		"ending endpoints when nobody is ready": {
			service: service(),
			slices: []*discoveryv1.EndpointSlice{
				slice(endpoint(remote, "node-2", ending), endpoint("10.42.2.6", "node-2", notReady))},
			frontends: map[Frontend]string{cluster: all},
			chains:    map[string]Chain{all: {HideForeign: true, Backends: backends(remote)}},
		},
		"an endpoint in two slices counts once": {
			service: service(), slices: []*discoveryv1.EndpointSlice{remoteOnly, remoteOnly},
			frontends: map[Frontend]string{cluster: all},
			chains:    map[string]Chain{all: {HideForeign: true, Backends: backends(remote)}},
		},
		"internal policy Local": {
			service: service(internalLocal), slices: []*discoveryv1.EndpointSlice{both},
			frontends: map[Frontend]string{cluster: internal},
			chains:    map[string]Chain{internal: {HideForeign: true, Backends: backends(local)}},
			hairpins:  []string{local},
		},
		"internal policy Local without a local endpoint: dropped": {
			service: service(internalLocal), slices: []*discoveryv1.EndpointSlice{remoteOnly},
			refused: map[Frontend]Refusal{cluster: Drop},
		},
		"external policy Local": {
			service: service(nodePort, externalLocal), slices: []*discoveryv1.EndpointSlice{both},
			frontends: map[Frontend]string{cluster: all, node: external},
			chains:    map[string]Chain{all: allChain, external: {Cluster: all, Backends: backends(local)}},
			hairpins:  []string{local},
		},
		"external policy Local without a local endpoint: clients in the cluster only": {
			service: service(nodePort, externalLocal), slices: []*discoveryv1.EndpointSlice{remoteOnly},
			frontends: map[Frontend]string{cluster: all, node: external},
			chains:    map[string]Chain{all: {HideForeign: true, Backends: backends(remote)}, external: {Cluster: all}},
		},
		"both policies Local": {
			service: service(nodePort, externalLocal, internalLocal), slices: []*discoveryv1.EndpointSlice{both},
			frontends: map[Frontend]string{cluster: internal, node: external},
			chains: map[string]Chain{all: allChain, external: {Cluster: all, Backends: backends(local)},
				internal: {HideForeign: true, Backends: backends(local)}}, hairpins: []string{local},
		},
		"affinity": {
			service: service(func(s *corev1.Service) {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
					ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
			}), slices: []*discoveryv1.EndpointSlice{remoteOnly},
			frontends: map[Frontend]string{cluster: all},
			chains:    map[string]Chain{all: {HideForeign: true, Affinity: time.Minute, Backends: backends(remote)}},
		},
		"addresses from outside, with allowed sources": {
			service: service(nodePort, func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1"}
				s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "198.51.100.7/24"}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
					{IP: "192.0.2.9"}, {Hostname: "lb.example"},
					{IP: "192.0.2.10", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}
			}), slices: []*discoveryv1.EndpointSlice{remoteOnly},
			frontends: map[Frontend]string{cluster: all, node: all, frontend("192.0.2.1", 80): all,
				frontend("192.0.2.9", 80): balancer},
			chains: map[string]Chain{all: {HideForeign: true, Backends: backends(remote)},
				balancer: {Sources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, Next: all}},
		},
		"headless": {service: service(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
			slices: []*discoveryv1.EndpointSlice{both}},
		"without address": {service: service(func(s *corev1.Service) { s.Spec.ClusterIP = "" }),
			slices: []*discoveryv1.EndpointSlice{both}},
		"of another proxy": {
			service: service(func(s *corev1.Service) { s.Labels = map[string]string{balancers.ProxyLabel: "mesh"} }),
			slices:  []*discoveryv1.EndpointSlice{both}},
		"headless by its label": {
			service: service(func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} }),
			slices:  []*discoveryv1.EndpointSlice{both}},
		"other port name": {
			service: service(func(s *corev1.Service) { s.Spec.Ports[0].Name = "admin" }),
			slices:  []*discoveryv1.EndpointSlice{both},
			refused: map[Frontend]Refusal{cluster: Reject},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := emptyRules()
			if test.frontends != nil {
				want.Frontends = test.frontends
			}
			if test.refused != nil {
				want.Refused = test.refused
			}
			if test.chains != nil {
				want.Chains = test.chains
			}
			for _, ip := range test.hairpins {
				want.Hairpins[netip.MustParseAddr(ip)] = struct{}{}
			}
			got := plan(Snapshot{NodeName: here, Services: []*corev1.Service{test.service}, Slices: test.slices})
			// Hairpins of services that nobody can ask for do no harm.
			if len(want.Frontends) == 0 {
				got.Hairpins = want.Hairpins
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// TestPlanLocal: the node answers where no service has endpoints, or none is.
// TestPlanPrefersNearEndpoints: hints lead to endpoints of the node or its zone, where all have
// them.
func TestPlanPrefersNearEndpoints(t *testing.T) {
	const one, two, three = "10.42.1.1", "10.42.2.1", "10.42.3.1"
	hinted := func(ip string, s state, zone string, nodes ...string) discoveryv1.Endpoint {
		e := endpoint(ip, "node-x", s)
		e.Hints = &discoveryv1.EndpointHints{}
		if zone != "" {
			e.Hints.ForZones = []discoveryv1.ForZone{{Name: zone}}
		}
		for _, node := range nodes {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: node})
		}
		return e
	}
	for name, test := range map[string]struct {
		zone      string
		endpoints []discoveryv1.Endpoint
		want      []string
	}{
		"same zone": {"z1", []discoveryv1.Endpoint{hinted(one, ready, "z1"), hinted(two, ready, "z2")},
			[]string{one}},
		"nobody in the zone": {"z3", []discoveryv1.Endpoint{hinted(one, ready, "z1"), hinted(two, ready, "z2")},
			[]string{one, two}},
		"a node without zone": {"", []discoveryv1.Endpoint{hinted(one, ready, "z1"), hinted(two, ready, "z2")},
			[]string{one, two}},
		"one without hint": {"z1",
			[]discoveryv1.Endpoint{hinted(one, ready, "z1"), endpoint(two, "node-2", ready)}, []string{one, two}},
		"one unready without": {"z1",
			[]discoveryv1.Endpoint{hinted(one, ready, "z1"), hinted(two, ready, "z2"),
				endpoint(three, "node-3", notReady)}, []string{one}},
		"an unready one is none": {"z1", []discoveryv1.Endpoint{hinted(one, notReady, "z1"), hinted(two, ready, "z2")},
			[]string{two}},
		"same node": {"z1",
			[]discoveryv1.Endpoint{hinted(one, ready, "z1", here), hinted(two, ready, "z1", "node-2")}, []string{one}},
		"nobody on the node": {"z1",
			[]discoveryv1.Endpoint{hinted(one, ready, "z1", "node-3"), hinted(two, ready, "z2", "node-2")},
			[]string{one}},
		"the node before zones": {"z2",
			[]discoveryv1.Endpoint{hinted(one, ready, "z1", here), hinted(two, ready, "z2", "node-2")}, []string{one}},
		"ending ones have no say": {"z1", []discoveryv1.Endpoint{hinted(one, ending, "z2"), hinted(two, ending, "z1")},
			[]string{one, two}},
	} {
		rules := plan(Snapshot{NodeName: here, Zone: test.zone, Services: []*corev1.Service{service()},
			Slices: []*discoveryv1.EndpointSlice{slice(test.endpoints...)}})
		if got := rules.Chains["all/default/web/TCP/80"].Backends; !reflect.DeepEqual(got, backends(test.want...)) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestPlanLocal(t *testing.T) {
	at, own := frontend("10.43.0.10", 80), Backend{Addr: netip.MustParseAddr("169.254.20.53"), Port: 10053}
	local := map[Frontend]Backend{at: own}
	const node, all = "local/10.43.0.10/TCP/80", "all/default/web/TCP/80"
	for name, test := range map[string]struct {
		services []*corev1.Service
		slices   []*discoveryv1.EndpointSlice
		want     string
	}{
		"no service":                  {want: node},
		"a service without endpoints": {services: []*corev1.Service{service()}, want: node},
		"one whose endpoints are late": {[]*corev1.Service{service()},
			[]*discoveryv1.EndpointSlice{slice(endpoint("10.42.1.5", here, notReady))}, node},
		"a service with endpoints": {[]*corev1.Service{service()},
			[]*discoveryv1.EndpointSlice{slice(endpoint("10.42.1.5", here, ready))}, all},
		"another service's external address": {
			[]*corev1.Service{service(func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.ExternalIPs = "10.43.0.99", []string{"10.43.0.10"}
			})}, []*discoveryv1.EndpointSlice{slice(endpoint("10.42.1.5", here, ready))}, node},
		"another service's balancer": {
			[]*corev1.Service{service(func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Status.LoadBalancer.Ingress = "10.43.0.99",
					[]corev1.LoadBalancerIngress{{IP: "10.43.0.10"}}
			})}, []*discoveryv1.EndpointSlice{slice(endpoint("10.42.1.5", here, ready))}, node},
	} {
		rules := plan(Snapshot{NodeName: here, Services: test.services, Slices: test.slices, Local: local})
		if got := rules.Frontends[at]; got != test.want || len(rules.Refused) != 0 ||
			len(rules.Chains) != len(rules.Frontends) {
			t.Errorf("%s: leads to %q: %+v", name, got, rules)
		}
		if test.want == node && !reflect.DeepEqual(rules.Chains[node], Chain{Backends: []Backend{own}}) {
			t.Errorf("%s: %+v", name, rules.Chains)
		}
	}
}

func TestPlanHostPorts(t *testing.T) {
	pod := func(name string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PodSpec{NodeName: here, Containers: []corev1.Container{{
				Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 80, Protocol: corev1.ProtocolTCP}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.42.1.7"},
		}
		for _, c := range change {
			c(p)
		}
		return p
	}
	chain := Chain{Backends: backends("10.42.1.7")}
	for name, test := range map[string]struct {
		pod       *corev1.Pod
		frontends map[Frontend]string
	}{
		"any address": {pod("a"), map[Frontend]string{frontend("", 80): "host/default/a/TCP/80"}},
		"one address": {pod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].HostIP = "192.0.2.1" }),
			map[Frontend]string{frontend("192.0.2.1", 80): "host/default/a/TCP/80/192.0.2.1"}},
		"elsewhere":      {pod("a", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }), nil},
		"host network":   {pod("a", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), nil},
		"ended":          {pod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), nil},
		"no address yet": {pod("a", func(p *corev1.Pod) { p.Status.PodIP = "" }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := plan(Snapshot{NodeName: here, Pods: []*corev1.Pod{test.pod}})
			want := emptyRules()
			for f, name := range test.frontends {
				want.Frontends[f] = name
				want.Chains[name] = chain
				want.Hairpins[netip.MustParseAddr("10.42.1.7")] = struct{}{}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}

	t.Run("a node port wins", func(t *testing.T) {
		got := plan(Snapshot{
			NodeName: here, Services: []*corev1.Service{service(nodePort)},
			Slices: []*discoveryv1.EndpointSlice{slice(endpoint("10.42.2.5", "node-2", ready))},
			Pods:   []*corev1.Pod{pod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].HostPort = 30080 })},
		})
		if got.Frontends[frontend("", 30080)] != "all/default/web/TCP/80" {
			t.Errorf("frontends: %v", got.Frontends)
		}
		if _, kept := got.Chains["host/default/a/TCP/30080"]; kept {
			t.Error("a chain that nobody leads to was kept")
		}
	})
}
