package provider

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/balancers"
)

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2." + name},
			{Type: corev1.NodeInternalIP, Address: "2001:db8::" + name}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	for _, c := range change {
		c(n)
	}
	return n
}

func labelled(value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: value} }
}

func unready(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

func external(n *corev1.Node) {
	n.Status.Addresses = append(n.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113." + n.Name})
}

func tainted(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} }

func service(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		Ports:                 []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	for _, c := range change {
		c(s)
	}
	return s
}

func on(ports ...int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Ports = nil
		for _, p := range ports {
			s.Spec.Ports = append(s.Spec.Ports,
				corev1.ServicePort{Name: fmt.Sprint(p), Port: p, Protocol: corev1.ProtocolTCP})
		}
	}
}

func class(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func asking(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{balancers.AddressesAnnotation: ip} }
}

// has gives a Service a status of ours.
func has(condition string, ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Status = corev1.ServiceStatus{Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue}}}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				balancers.Ingress(netip.MustParseAddr(ip), balancers.Wanted(s)))
		}
	}
}

func endpoint(node string, ready bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-" + node,
			Labels: map[string]string{discoveryv1.LabelServiceName: "a"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
}

func poolObject(name string, addresses ...string) *pool.Object {
	return &pool.Object{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pool.Spec{Addresses: addresses}}
}

// made is a provider with informers that hold objects.
func made(t *testing.T, objects ...runtime.Object) *Provider {
	t.Helper()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	p, err := New(
		Config{Informers: factory, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
			FirstNodePort: 30000, LastNodePort: 32767,
			Ports: map[balancers.Port]string{{Protocol: corev1.ProtocolTCP, Port: 6443}: "the Kubernetes API"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.WaitForCacheSync(ctx.Done())
	return p
}

func TestBalance(t *testing.T) {
	hostPort := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ingress"},
		Spec: corev1.PodSpec{NodeName: "1",
			Containers: []corev1.Container{
				{Ports: []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}}}}}}
	done := hostPort.DeepCopy()
	done.Status.Phase = corev1.PodSucceeded
	two := []runtime.Object{node("1"), node("2")}
	lan := []*pool.Object{poolObject("lan", "198.51.100.0/30")}
	inUse := "the port 80/TCP of the nodes is in use by "
	for name, c := range map[string]struct {
		s       *corev1.Service
		objects []runtime.Object
		pools   []*pool.Object
		others  []*corev1.Service
		want    string // condition, reason, addresses with ports
	}{
		"the nodes": {service("a"), two, nil, nil, "NodeAddress Assigned 192.0.2.1[80/TCP] 192.0.2.2[80/TCP]"},
		"both families": {service("a", func(s *corev1.Service) {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		}), []runtime.Object{node("1")}, nil, nil, "NodeAddress Assigned 2001:db8::1[80/TCP] 192.0.2.1[80/TCP]"},
		"external ones": {service("a"), []runtime.Object{node("1", external), node("2")}, nil, nil,
			"NodeAddress Assigned 192.0.2.2[80/TCP] 203.0.113.1[80/TCP]"},
		"excluded": {service("a"),
			[]runtime.Object{node("1", labelled("true")), node("2", labelled("false")), node("3", labelled(""))}, nil,
			nil, "NodeAddress Assigned 192.0.2.2[80/TCP]"},
		"not ready": {service("a"), []runtime.Object{node("1", unready), node("2", tainted), node("3")}, nil,
			nil, "NodeAddress Assigned 192.0.2.3[80/TCP]"},
		"no node": {service("a"), []runtime.Object{node("1", unready)}, nil, nil,
			"NodeAddress NoNodes no node is ready"},
		"none is ready": {service("a", has(balancers.NodesCondition, "192.0.2.1", "192.0.2.9")),
			[]runtime.Object{node("1", unready), node("2", unready)}, nil, nil,
			"NodeAddress Assigned 192.0.2.1[80/TCP]"},
		"local": {service("a", local), append(two, endpoint("1", false), endpoint("2", true)), nil, nil,
			"NodeAddress Assigned 192.0.2.2[80/TCP]"},
		"local, none": {service("a", local), append(two, endpoint("1", false)), nil, nil,
			"NodeAddress NoNodes no node has a ready endpoint"},
		"local, restarts": {service("a", local, has(balancers.NodesCondition, "192.0.2.2")),
			append(two, endpoint("2", false)), nil, nil, "NodeAddress Assigned 192.0.2.2[80/TCP]"},
		"one port": {service("a"), two, nil,
			[]*corev1.Service{service("b", has(balancers.NodesCondition, "192.0.2.1"))},
			"NodeAddress PortInUse " + inUse + "the Service ns/b"},
		"one port of a pool": {service("a"), []runtime.Object{node("1")}, nil,
			[]*corev1.Service{service("b", has(balancers.PoolCondition, "198.51.100.1"))},
			"NodeAddress Assigned 192.0.2.1[80/TCP]"},
		"one of two ports": {service("a", on(80, 443)), two, nil,
			[]*corev1.Service{service("b", has(balancers.NodesCondition, "192.0.2.1"))},
			"NodeAddress PortInUse " + inUse + "the Service ns/b"},
		"a further port": {service("a", on(443), has(balancers.NodesCondition, "192.0.2.1"), on(80, 443)),
			[]runtime.Object{node("1")}, nil,
			[]*corev1.Service{service("b", has(balancers.NodesCondition, "192.0.2.1"))},
			"NodeAddress PortInUse 192.0.2.1[443/TCP] " + inUse + "the Service ns/b"},
		"a host port": {service("a"), append(two, hostPort), nil, nil,
			"NodeAddress PortInUse " + inUse + "the pod ns/ingress, which has it as its host port"},
		"a former host port": {service("a"), []runtime.Object{node("1"), done}, nil, nil,
			"NodeAddress Assigned 192.0.2.1[80/TCP]"},
		"the API's port": {service("a", on(6443)), two, nil, nil,
			"NodeAddress PortInUse the port 6443/TCP of the nodes is in use by the Kubernetes API"},
		"a node port": {service("a", on(30080)), two, nil, nil,
			"NodeAddress PortInUse the port 30080/TCP of the nodes is in use by the range of node ports, 30000-32767"},
		"a pool": {service("a"), two, lan, nil, "PoolAddress Assigned 198.51.100.0[80/TCP]"},
		"a pool comes": {service("a", has(balancers.NodesCondition, "192.0.2.1", "192.0.2.2")), two, lan, nil,
			"NodeAddress Assigned 192.0.2.1[80/TCP] 192.0.2.2[80/TCP]"},
		"the pool goes": {service("a", has(balancers.PoolCondition, "198.51.100.0")),
			[]runtime.Object{node("1")}, nil, nil, "NodeAddress Assigned 192.0.2.1[80/TCP]"},
		"class of nodes": {service("a", class(balancers.ClassNodes)), []runtime.Object{node("1")}, lan, nil,
			"NodeAddress Assigned 192.0.2.1[80/TCP]"},
		"class of pools": {service("a", class(balancers.ClassPool)), two, nil, nil,
			"PoolAddress NoPool there is no AddressPool"},
		"asking": {service("a", asking("198.51.100.2")), two, lan, nil,
			"PoolAddress Assigned 198.51.100.2[80/TCP]"},
		"asking without": {service("a", asking("198.51.100.2")), two, nil, nil,
			"PoolAddress NoPool there is no AddressPool"},
		"a node in the pool": {service("a"), []runtime.Object{node("1")},
			[]*pool.Object{poolObject("lan", "192.0.2.1-192.0.2.2")}, nil, "PoolAddress Assigned 192.0.2.2[80/TCP]"},
		"pods in the pool": {service("a"), two, []*pool.Object{poolObject("lan", "10.42.1.0/24")}, nil,
			"PoolAddress NoPool no AddressPool with IPv4 addresses is ready"},
		"services in the pool": {service("a"),
			[]runtime.Object{
				&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "x"},
					Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"198.51.100.0/24"}}}}, lan, nil,
			"PoolAddress NoPool no AddressPool with IPv4 addresses is ready"},
	} {
		t.Run(name, func(t *testing.T) {
			p := made(t, c.objects...)
			if _, known, _ := p.Balance(c.s, nil, nil); known {
				t.Error("it decides before it knows the pools")
			}
			p.set(c.pools, true)
			status, _, err := p.Balance(c.s, append(c.others, c.s), nil)
			if got := described(status, err); !strings.HasPrefix(got, c.want) || err == nil && got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			s := c.s.DeepCopy()
			s.Status = status
			if again, _, againErr := p.Balance(s, append(c.others, s), nil); described(again,
				againErr) != described(status, err) {
				t.Errorf("got %s, and then %s", described(status, err), described(again, againErr))
			}
		})
	}
}

// TestManyNodes: a status has a bounded number of the nodes' addresses, and those that it has stay
// when other nodes come.
func TestManyNodes(t *testing.T) {
	nodes := func(from, to int) (all []*corev1.Node) {
		for i := from; i <= to; i++ {
			all = append(all, node(fmt.Sprint(i)))
		}
		return all
	}
	s := service("a")
	first := nodeAddresses(s, nodes(101, 250), nil)
	if len(first) != mostAddresses {
		t.Fatalf("%d addresses, want %d", len(first), mostAddresses)
	}
	for _, a := range first {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, balancers.Ingress(a, balancers.Wanted(s)))
	}
	s.Status.Conditions = []metav1.Condition{{Type: balancers.NodesCondition, Status: metav1.ConditionTrue}}
	if more := nodeAddresses(s, nodes(1, 250), nil); !slices.Equal(first, more) {
		t.Errorf("%v\nbecame with more nodes\n%v", first, more)
	}
	less := nodeAddresses(s, nodes(102, 250), nil) // 101 has gone
	if len(less) != mostAddresses || less[0] != netip.MustParseAddr("192.0.2.102") ||
		less[mostAddresses-1] != netip.MustParseAddr("192.0.2.165") {
		t.Errorf("after a node has gone: %v", less)
	}
}

func described(status corev1.ServiceStatus, err error) string {
	var out []string
	for _, c := range status.Conditions {
		out = append(out, strings.TrimPrefix(c.Type, "barque.io/"), c.Reason)
	}
	s := service("x")
	s.Status = status
	for _, h := range balancers.HeldBy(s) {
		out = append(out, fmt.Sprintf("%v%v", h.Address, h.Ports))
	}
	var r *pool.Refusal
	if errors.As(err, &r) {
		out = append(out, r.Message)
	}
	return strings.Join(out, " ")
}

// routes is a Gateway with fixed answers.
type routes struct {
	users map[balancers.Port]string
	known bool
}

func (r *routes) PortUser(port balancers.Port) (string, bool) { return r.users[port], r.known }

func (r *routes) Follow(ctx context.Context, changed func()) error {
	r.known = true
	changed()
	<-ctx.Done()
	return nil
}

// TestPortsOfRoutes: a Service gets no port that a route needs, and none before the routes are
// known; it keeps one that it has.
func TestPortsOfRoutes(t *testing.T) {
	p := made(t, node("1"))
	used := &routes{users: map[balancers.Port]string{{Protocol: corev1.ProtocolTCP, Port: 80}: "the Ingress ns/web"}}
	p.cfg.Gateway = used
	p.set(nil, true)
	if _, known, _ := p.Balance(service("a", on(81)), nil, nil); known {
		t.Error("it gives ports of the nodes before it knows the routes")
	}
	if _, known, _ := p.Balance(service("a", class(balancers.ClassPool)), nil, nil); !known {
		t.Error("an address of a pool waits for the routes")
	}
	used.known = true
	udp := service("a")
	udp.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	for name, c := range map[string]struct {
		s    *corev1.Service
		want string
	}{
		"a route's": {service("a"),
			"NodeAddress PortInUse the port 80/TCP of the nodes is in use by the Ingress ns/web"},
		"the Service's own": {service("a", has(balancers.NodesCondition, "192.0.2.1")),
			"NodeAddress Assigned 192.0.2.1[80/TCP]"},
		"another port": {service("a", on(81)), "NodeAddress Assigned 192.0.2.1[81/TCP]"},
		"UDP":          {udp, "NodeAddress Assigned 192.0.2.1[80/UDP]"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, err := p.Balance(c.s, []*corev1.Service{c.s}, nil)
			if got := described(status, err); !strings.HasPrefix(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestServes: a Service with another class, or with an address that another load balancer has
// given, is left alone.
func TestServes(t *testing.T) {
	p := made(t)
	given := func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	}
	own := func(s *corev1.Service) { s.Status.Conditions = []metav1.Condition{{Type: balancers.NodesCondition}} }
	for s, want := range map[*corev1.Service]bool{
		service("a"): true, service("a", given): false, service("a", given, own): true,
		service("a", given, class(balancers.ClassPool)): true,
		service("a", class(balancers.ClassPool)):        true, service("a", class(balancers.ClassNodes)): true,
		service("a", class("example.com/x")): false,
	} {
		if got := p.Serves(s); got != want {
			t.Errorf("%v: %t", s.Spec.LoadBalancerClass, got)
		}
	}
}

// The provider follows the pools, and their statuses follow the Services.
func TestPoolsAndTheirStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := made(t, service("a", has(balancers.PoolCondition, "198.51.100.1")))
		object := func(name string, addresses ...any) *unstructured.Unstructured {
			return &unstructured.Unstructured{
				Object: map[string]any{"apiVersion": "edge.barque.io/v1", "kind": "AddressPool",
					"metadata": map[string]any{"name": name, "uid": name},
					"spec":     map[string]any{"addresses": addresses}}}
		}
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{pool.Resource: "AddressPoolList"}, object("lan", "198.51.100.0/30"))
		ctx, cancel := context.WithCancel(t.Context())
		changes := 0
		ended := make(chan error)
		go func() { ended <- p.follow(ctx, client, func() { changes++ }) }()
		<-time.After(3 * time.Second)
		synctest.Wait()
		want := func(name string, used, free int64, ready metav1.ConditionStatus) {
			t.Helper()
			u, err := client.Resource(pool.Resource).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			o, err := pool.Read(u)
			if err != nil {
				t.Fatal(err)
			}
			c := meta.FindStatusCondition(o.Status.Conditions, pool.Ready)
			if o.Status.Used != used || o.Status.Free != free || c == nil || c.Status != ready {
				t.Errorf("%s: %+v, want %d used, %d free, %s", name, o.Status, used, free, ready)
			}
		}
		want("lan", 1, 3, metav1.ConditionTrue)
		if changes != 1 {
			t.Errorf("%d changes", changes)
		}
		if _, err := client.Resource(pool.Resource).Create(ctx, object("pods", "10.42.0.0/24"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * time.Second)
		synctest.Wait()
		want("pods", 0, 0, metav1.ConditionFalse)
		metrics := `# HELP barque_edge_pool_addresses Addresses of an AddressPool, in the view of the leader, by state: used or free.
# TYPE barque_edge_pool_addresses gauge
barque_edge_pool_addresses{pool="lan",state="free"} 3
barque_edge_pool_addresses{pool="lan",state="used"} 1
barque_edge_pool_addresses{pool="pods",state="free"} 0
barque_edge_pool_addresses{pool="pods",state="used"} 0
`
		if err := testutil.CollectAndCompare(p, strings.NewReader(metrics)); err != nil {
			t.Error(err)
		}
		if changes != 2 {
			t.Errorf("%d changes: a status is none", changes)
		}
		client.ClearActions()
		<-time.After(time.Hour)
		for _, a := range client.Actions() {
			t.Errorf("an idle provider: %s %s", a.GetVerb(), a.GetResource())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if pools := p.Pools(); pools != nil {
			t.Errorf("a server that leads no more has the pools %+v", pools)
		}
	})
}
