package network

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Nine pods in three namespaces: x, y and z have a, b and c each. Pods b are on the second node.

// reaches tells whether one pod, such as "x-a", reaches another.
type reaches func(from, to string) bool

func always(string, string) bool { return true }

func namespaceOf(pod string) string { return pod[:1] }
func letter(pod string) string      { return pod[2:] }

// table asks for the connections of every pair of pods until they are as wanted.
func (c *cluster) table(want reaches) {
	c.t.Helper()
	pods := slices.Sorted(maps.Keys(c.ips))
	var targets []string
	for _, pod := range pods {
		targets = append(targets, fmt.Sprintf("%s:%d", c.ips[pod], podPort))
	}
	var wrong []string
	deadline := time.Now().Add(time.Minute)
	for first := true; first || time.Now().Before(deadline); first = false {
		results := make([][]bool, len(pods))
		var asking sync.WaitGroup
		for i, from := range pods {
			asking.Go(func() { // ends with its call
				_ = c.on[from].rpc.Call("Node.Reach", ReachArgs{From: from, Targets: targets}, &results[i])
			})
		}
		asking.Wait()
		wrong = nil
		for i, from := range pods {
			if len(results[i]) != len(pods) {
				c.t.Fatalf("%s could not ask", from)
			}
			for j, to := range pods {
				if from != to && results[i][j] != want(from, to) {
					wrong = append(wrong, fmt.Sprintf("%s→%s: %v", from, to, results[i][j]))
				}
			}
		}
		if wrong == nil {
			return
		}
	}
	c.t.Errorf("wrong: %s", strings.Join(wrong, ", "))
}

func networkPolicy(namespace, name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
	if spec.PolicyTypes == nil {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	}
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
}

func labelled(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

var egress = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}

// TestPolicies sends real packets between two nodes.
func TestPolicies(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	c := startCluster(t)
	a, b := c.nodes[0], c.nodes[1]
	for _, namespace := range []string{"x", "y", "z", "kube-system"} {
		c.objects.Namespaces = append(c.objects.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace, Labels: map[string]string{"ns": namespace, "kubernetes.io/metadata.name": namespace}}})
	}
	for _, namespace := range []string{"x", "y", "z"} {
		for name, n := range map[string]*node{"a": a, "b": b, "c": a} {
			c.start(n, namespace, name, func(p *corev1.Pod) { p.Labels = map[string]string{"pod": name} })
		}
	}
	c.apply()
	web := []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromString("web"))}}
	ports := func(first, last int32) []networkingv1.NetworkPolicyPort {
		return []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(first)), EndPort: &last}}
	}
	everywhere := networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}
	ingress := func(
		ports []networkingv1.NetworkPolicyPort, from ...networkingv1.NetworkPolicyPeer,
	) []networkingv1.NetworkPolicyIngressRule {
		return []networkingv1.NetworkPolicyIngressRule{{From: from, Ports: ports}}
	}
	notToX := func(_, to string) bool { return namespaceOf(to) != "x" }
	for _, step := range []struct {
		name     string
		policies []*networkingv1.NetworkPolicy
		want     reaches
	}{
		{"none", nil, always},
		{"deny all", []*networkingv1.NetworkPolicy{networkPolicy("x", "deny", networkingv1.NetworkPolicySpec{})},
			notToX},
		{"pods of a namespace at a named port", []*networkingv1.NetworkPolicy{
			networkPolicy("x", "deny", networkingv1.NetworkPolicySpec{}),
			networkPolicy("x", "allow",
				networkingv1.NetworkPolicySpec{PodSelector: *labelled("pod", "a"), Ingress: ingress(web,
					networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled("ns", "y"),
						PodSelector: labelled("pod", "b")})}),
		}, func(from, to string) bool { return notToX(from, to) || to == "x-a" && from == "y-b" }},
		{"own namespace, a range of ports", []*networkingv1.NetworkPolicy{
			networkPolicy("x", "allow",
				networkingv1.NetworkPolicySpec{
					Ingress: ingress(ports(8000, 8100),
						networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}})}),
			networkPolicy("z", "other-ports", networkingv1.NetworkPolicySpec{Ingress: ingress(ports(8081, 8100))}),
		}, func(from, to string) bool {
			return namespaceOf(to) == "y" || namespaceOf(to) == "x" && namespaceOf(from) == "x"
		}},
		{"a block, and another peer within its exception", []*networkingv1.NetworkPolicy{
			networkPolicy("x", "allow", networkingv1.NetworkPolicySpec{Ingress: ingress(nil,
				networkingv1.NetworkPolicyPeer{
					IPBlock: &networkingv1.IPBlock{CIDR: "10.42.0.0/16", Except: []string{"10.42.2.0/24"}}},
				networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled("ns", "z")})}),
		}, func(from, to string) bool { return notToX(from, to) || letter(from) != "b" || namespaceOf(from) == "z" }},
		{"egress", []*networkingv1.NetworkPolicy{
			networkPolicy("y", "out",
				networkingv1.NetworkPolicySpec{PolicyTypes: egress, Egress: []networkingv1.NetworkPolicyEgressRule{
					{To: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: labelled("ns", "z")}}, Ports: web}}}),
		}, func(from, to string) bool { return namespaceOf(from) != "y" || namespaceOf(to) == "z" }},
		{"both ways", []*networkingv1.NetworkPolicy{
			networkPolicy("y", "out",
				networkingv1.NetworkPolicySpec{PolicyTypes: egress, PodSelector: *labelled("pod", "a")}),
			networkPolicy("z", "in",
				networkingv1.NetworkPolicySpec{PodSelector: *labelled("pod", "c"), Ingress: ingress(nil, everywhere)}),
			networkPolicy("x", "deny", networkingv1.NetworkPolicySpec{PodSelector: *labelled("pod", "b")}),
		}, func(from, to string) bool { return from != "y-a" && to != "x-b" }},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.t = t
			c.objects.Policies = step.policies
			c.apply()
			c.table(step.want)
		})
	}

	address := func(pod string) string { return fmt.Sprintf("%s:%d", c.ips[pod], podPort) }
	by := func(pod, client string) string { return pod + " " + client }
	const silent = "timeout"
	deny := []*networkingv1.NetworkPolicy{networkPolicy("x", "deny", networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}})}
	t.Run("established connections end", func(t *testing.T) {
		c.t = t
		c.objects.Policies = nil
		c.apply()
		for _, from := range []string{"y-a", "y-b"} { // all questions come from one port
			c.answers(from, "udp4", address("x-a"), by("x-a", c.ips[from]))
		}
		c.answers("x-a", "udp4", address("z-b"), by("z-b", c.ips["x-a"]))
		c.objects.Policies = deny
		c.apply()
		for _, from := range []string{"y-a", "y-b"} {
			c.answers(from, "udp4", address("x-a"), silent)
		}
		c.answers("x-a", "udp4", address("z-b"), silent)
	})
	t.Run("the node reaches its own pods", func(t *testing.T) {
		c.t = t
		c.answers(a.name, "tcp4", address("x-a"), by("x-a", "10.42.1.1"))
		c.answers(a.name, "tcp4", address("x-b"), silent)
		c.answers(b.name, "tcp4", address("x-b"), by("x-b", "10.42.2.1"))
	})
	t.Run("services", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, nil, "x-a")
		service := net.JoinHostPort(clusterIP, "80")
		c.answers("y-a", "tcp4", service, silent)
		c.answers("x-a", "tcp4", service, by("x-a", "10.42.1.1")) // itself
		c.answers("lan", "tcp4", fmt.Sprintf("%s:%d", a.ip, nodePort), silent)
		c.serve(corev1.ProtocolTCP, nil)
	})
	t.Run("names", func(t *testing.T) {
		c.t = t
		names := net.JoinHostPort(clusterIP, "53")
		c.answers("y-a", "dns/udp", names, "NOERROR "+clusterIP)
		c.answers("x-a", "dns/udp", names, silent)
		dns := networkingv1.NetworkPolicyEgressRule{
			To: []networkingv1.NetworkPolicyPeer{
				{NamespaceSelector: labelled("kubernetes.io/metadata.name", "kube-system"),
					PodSelector: labelled("k8s-app", "kube-dns")}},
			Ports: []networkingv1.NetworkPolicyPort{
				{Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To(intstr.FromInt32(53))},
				{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromInt32(53))}},
		}
		c.objects.Policies = append(slices.Clone(deny),
			networkPolicy("x", "dns", networkingv1.NetworkPolicySpec{PolicyTypes: egress,
				Egress: []networkingv1.NetworkPolicyEgressRule{dns}}))
		c.apply()
		for _, from := range []string{"x-a", "x-b"} {
			c.answers(from, "dns/udp", names, "NOERROR "+clusterIP)
			c.answers(from, "dns/tcp", names, "NOERROR "+clusterIP)
		}
		c.answers("x-a", "tcp4", address("y-a"), silent)
	})
	t.Run("a flushed ruleset comes back", func(t *testing.T) {
		c.t = t
		c.objects.Policies = deny
		c.apply()
		for range 3 {
			a.call("Flush", struct{}{}, nil)
			c.table(func(from, to string) bool { return namespaceOf(from) != "x" && namespaceOf(to) != "x" })
		}
	})
	t.Run("policies outlive Barque, and a new pod is closed until it is attached", func(t *testing.T) {
		c.t = t
		a.call("Stop", struct{}{}, nil)
		want := func(from, to string) bool { return namespaceOf(from) != "x" && namespaceOf(to) != "x" }
		c.table(want)
		// The runtime made it, and nobody knows it.
		c.ips["y-new"], c.on["y-new"] = a.addPod("y-new")[0], a
		closed := func(from, to string) bool { return want(from, to) && from != "y-new" && to != "y-new" }
		c.table(closed)
		a.call("Restart", struct{}{}, nil)
		c.table(closed)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "y", Name: "new", UID: "y-new"},
			Spec: corev1.PodSpec{NodeName: a.name}, Status: corev1.PodStatus{PodIP: c.ips["y-new"]}}
		a.attach(pod)
		c.table(want)
	})
	t.Run("no packet before the policies", func(t *testing.T) {
		c.t = t
		delete(c.ips, "y-new")
		done := make(chan struct{})
		var asking sync.WaitGroup
		ip := nextAddress(t, c)
		var reached atomic.Int32
		for _, from := range []string{"y-a", "z-b"} {
			asking.Go(func() { // ends with done
				for {
					select {
					case <-done:
						return
					default:
					}
					var got []bool
					_ = c.on[from].rpc.Call("Node.Reach",
						ReachArgs{From: from, Targets: []string{fmt.Sprintf("%s:%d", ip, podPort)}}, &got)
					if len(got) == 1 && got[0] {
						reached.Add(1)
					}
				}
			})
		}
		c.start(a, "x", "new", nil)
		c.apply()
		if c.ips["x-new"] != ip {
			t.Errorf("the new pod has %s, and %s was watched", c.ips["x-new"], ip)
		}
		c.table(func(from, to string) bool { return namespaceOf(from) != "x" && namespaceOf(to) != "x" })
		close(done)
		asking.Wait()
		if n := reached.Load(); n > 0 {
			t.Errorf("the new pod was reached %d times", n)
		}
	})
	for _, n := range c.nodes {
		n.call("Stop", struct{}{}, nil)
	}
}

// nextAddress is the address that the first node gives out next: addresses are given out in order.
func nextAddress(t *testing.T, c *cluster) string {
	t.Helper()
	last := 0
	for _, ip := range c.ips {
		var node, number int
		if _, err := fmt.Sscanf(ip, "10.42.%d.%d", &node, &number); err == nil && node == 1 {
			last = max(last, number)
		}
	}
	return fmt.Sprintf("10.42.1.%d", last+2)
}
