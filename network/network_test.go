package network

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	clusterIP = "10.43.0.10"
	nodePort  = 30080
)

// cluster is two nodes with three pods, and what the API server holds of it.
type cluster struct {
	t       *testing.T
	nodes   []*node
	ips     map[string]string // of pods, of the first family
	ips6    map[string]string // of pods that have two, of IPv6
	on      map[string]*node
	objects Objects
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, ips: map[string]string{}, ips6: map[string]string{}, on: map[string]*node{}}
}

func startCluster(t *testing.T) *cluster {
	bridge := lan(t)
	c := newCluster(t)
	for i := range 2 {
		n := startNode(t, bridge, i+1)
		c.nodes = append(c.nodes, n)
		c.objects.Nodes = append(c.objects.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.name},
			Spec:       corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.42.%d.0/24", i+1)},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.ip}}},
		})
	}
	c.objects.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	c.apply()
	return c
}

// start runs a pod on a node, and tells the API server and the node of it.
func (c *cluster) start(n *node, namespace, name string, change func(*corev1.Pod)) *corev1.Pod {
	c.t.Helper()
	key := name
	if namespace != "default" {
		key = namespace + "-" + name
	}
	ips := n.addPod(key)
	c.ips[key], c.on[key] = ips[0], n
	if len(ips) > 1 {
		c.ips6[key] = ips[1]
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(key)},
		Spec: corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{
			Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: podPort}}}}},
		Status: corev1.PodStatus{PodIP: c.ips[key]},
	}
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if change != nil {
		change(pod)
	}
	n.attach(pod)
	c.objects.Pods = append(c.objects.Pods, pod)
	return pod
}

// apply gives every node the objects.
func (c *cluster) apply() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.call("Apply", c.objects, nil)
	}
}

// serve makes the web service have these pods as endpoints.
func (c *cluster) serve(protocol corev1.Protocol, change func(*corev1.Service), pods ...string) {
	c.t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: clusterIP,
			Ports: []corev1.ServicePort{{Port: 80, NodePort: nodePort, Protocol: protocol}}},
	}
	if change != nil {
		change(service)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](podPort), Protocol: &protocol}},
	}
	slice6 := slice.DeepCopy()
	slice6.Name, slice6.AddressType = "web-2", discoveryv1.AddressTypeIPv6
	for _, pod := range pods {
		endpoint := discoveryv1.Endpoint{
			Addresses: []string{c.ips[pod]}, NodeName: &c.on[pod].name,
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		}
		if strings.Contains(c.ips[pod], ":") {
			slice6.Endpoints = append(slice6.Endpoints, endpoint)
			continue
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
		if ip, dual := c.ips6[pod]; dual {
			endpoint.Addresses = []string{ip}
			slice6.Endpoints = append(slice6.Endpoints, endpoint)
		}
	}
	c.objects.Services, c.objects.Slices = []*corev1.Service{service}, []*discoveryv1.EndpointSlice{slice, slice6}
	c.apply()
}

// from says who asks: a pod, a node, or the client outside ("lan").
func (c *cluster) ask(from, network, addr string) string {
	c.t.Helper()
	if from == "lan" {
		return ask(network, addr)
	}
	for _, n := range c.nodes {
		if n.name == from {
			return n.dial("", network, addr)
		}
	}
	return c.on[from].dial(from, network, addr)
}

// answers asks until the answers are the expected ones, all of them and only
// them in ten questions. An expectation is "pod client-address", or a part of
// an error.
func (c *cluster) answers(from, network, addr string, want ...string) {
	c.t.Helper()
	slices.Sort(want)
	var got []string
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		seen := map[string]bool{}
		for range 10 {
			answer := c.ask(from, network, addr)
			for _, part := range want {
				if strings.HasPrefix(answer, "error: ") && strings.Contains(answer, part) {
					answer = part
				}
			}
			seen[answer] = true
			if strings.Contains(answer, "timeout") {
				break // ten of them take too long
			}
		}
		if got = slices.Sorted(maps.Keys(seen)); slices.Equal(got, want) {
			return
		}
	}
	c.t.Errorf("%s asks %s %s: got %q, want %q", from, network, addr, got, want)
}

// answersOnce asks until it gets the answer. It is for answers that come as ICMP
// errors, of which the kernel sends one client only few.
func (c *cluster) answersOnce(from, network, addr, want string) {
	c.t.Helper()
	var got string
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if got = c.ask(from, network, addr); strings.Contains(got, want) {
			return
		}
	}
	c.t.Errorf("%s asks %s %s: got %q, want %q", from, network, addr, got, want)
}

// TestPackets sends real ones between two nodes.
func TestPackets(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	c := startCluster(t)
	a, b := c.nodes[0], c.nodes[1]
	c.start(a, "default", "a1", nil)
	second := c.start(a, "default", "a2", nil)
	c.start(b, "default", "b1", nil)
	c.apply()
	service := net.JoinHostPort(clusterIP, "80")
	port := func(n *node) string { return fmt.Sprintf("%s:%d", n.ip, nodePort) }
	pod := func(name string) string { return fmt.Sprintf("%s:%d", c.ips[name], podPort) }
	by := func(pod, client string) string {
		if ip, isPod := c.ips[client]; isPod {
			client = ip
		}
		return pod + " " + client
	}
	const refused, silent = "refused", "timeout"

	t.Run("pods reach pods", func(t *testing.T) {
		c.t = t
		c.answers("a1", "tcp4", pod("a2"), by("a2", "a1"))
		c.answers("a1", "tcp4", pod("b1"), by("b1", "a1"))
		c.answers("b1", "udp4", pod("a1"), by("a1", "b1"))
		c.answers(a.name, "tcp4", pod("b1"), by("b1", a.ip))
		c.answersOnce("a1", "tcp4", "10.42.2.200:80", "no route to host")
	})
	t.Run("pods reach the world with their node's address", func(t *testing.T) {
		c.t = t
		must(t, listen("world"))
		c.answers("a1", "tcp4", fmt.Sprintf("192.168.77.1:%d", podPort), by("world", a.ip))
	})
	t.Run("cluster address", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, nil, "a1", "b1")
		c.answers("a2", "tcp4", service, by("a1", "a2"), by("b1", "a2"))
		c.answers(b.name, "tcp4", service, by("a1", b.ip), by("b1", "10.42.2.1"))
	})
	t.Run("node port", func(t *testing.T) {
		c.t = t
		c.answers("lan", "tcp4", port(a), by("a1", "10.42.1.1"), by("b1", a.ip))
		c.answers(a.name, "tcp4", port(a), by("a1", "10.42.1.1"), by("b1", a.ip))
		c.answers("b1", "tcp4", port(a), by("a1", "10.42.1.1"), by("b1", a.ip))
	})
	t.Run("a pod reaches itself through its service", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, nil, "a1")
		c.answers("a1", "tcp4", service, by("a1", "10.42.1.1"))
		c.answers("a1", "tcp4", port(a), by("a1", "10.42.1.1"))
	})
	// The API servers are such endpoints of the service "kubernetes".
	t.Run("endpoints on the host network", func(t *testing.T) {
		c.t = t
		for _, n := range c.nodes {
			n.call("Listen", n.name, nil)
			c.ips[n.name], c.on[n.name] = n.ip, n
		}
		c.serve(corev1.ProtocolTCP, nil, a.name, b.name)
		c.answers("a1", "tcp4", service, by(a.name, "a1"), by(b.name, a.ip))
		c.answers(a.name, "tcp4", service, by(a.name, a.ip), by(b.name, a.ip))
		c.answers("lan", "tcp4", port(b), by(b.name, "192.168.77.1"), by(a.name, b.ip))
		for _, n := range c.nodes {
			delete(c.ips, n.name)
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, nil)
		c.answers("a1", "tcp4", service, refused)
		c.answers(a.name, "tcp4", service, refused)
		c.answers("lan", "tcp4", port(b), refused)
		c.answers("a1", "tcp4", "10.43.77.77:80", refused)
		c.answersOnce("a1", "udp4", "10.43.77.77:80", refused)
	})
	t.Run("external policy Local", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, "a1")
		c.answers("lan", "tcp4", port(a), by("a1", "192.168.77.1"))
		c.answers("lan", "tcp4", port(b), silent)
		c.answers("b1", "tcp4", port(b), by("a1", "b1"))
		c.answers(b.name, "tcp4", port(b), by("a1", b.ip))
	})
	t.Run("internal policy Local", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		}, "a1")
		c.answers("a2", "tcp4", service, by("a1", "a2"))
		c.answers("b1", "tcp4", service, silent)
		c.answers("lan", "tcp4", port(b), by("a1", b.ip))
	})
	t.Run("affinity", func(t *testing.T) {
		c.t = t
		affine := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
		c.serve(corev1.ProtocolTCP, affine, "b1")
		c.answers("a2", "tcp4", service, by("b1", "a2")) // bound to b1 now
		c.serve(corev1.ProtocolTCP, affine, "a1", "b1")
		c.answers("a2", "tcp4", service, by("b1", "a2"))
		c.serve(corev1.ProtocolTCP, affine, "a1") // the bond goes with the backend
		c.answers("a2", "tcp4", service, by("a1", "a2"))
	})
	t.Run("UDP follows its backends", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolUDP, nil, "a1")
		c.answers("a2", "udp4", service, by("a1", "a2"))
		c.serve(corev1.ProtocolUDP, nil, "b1")
		c.answers("a2", "udp4", service, by("b1", "a2"))
		c.answers("lan", "udp4", port(a), by("b1", a.ip))
		c.serve(corev1.ProtocolUDP, nil)
		c.answersOnce("a2", "udp4", service, refused)
		c.serve(corev1.ProtocolUDP, nil, "a1")
		c.answers("a2", "udp4", service, by("a1", "a2"))
	})
	t.Run("host port", func(t *testing.T) {
		c.t = t
		second.Spec.Containers[0].Ports[0].HostPort = 90
		c.apply()
		c.answers("lan", "tcp4", a.ip+":90", by("a2", "192.168.77.1"))
		c.answers("a2", "tcp4", a.ip+":90", by("a2", "10.42.1.1"))
		c.answers("lan", "tcp4", b.ip+":90", refused)
	})
	t.Run("names", func(t *testing.T) {
		c.t = t
		names := net.JoinHostPort(clusterIP, "53")
		for _, from := range []string{"a1", "b1", a.name} {
			c.answers(from, "dns/udp", names, "NOERROR "+clusterIP)
			c.answers(from, "dns/tcp", names, "NOERROR "+clusterIP)
		}
		// Nobody but the node's own clients: the address is no other machine's to reach.
		c.answersOnce("lan", "dns/udp", net.JoinHostPort(a.ip, strconv.Itoa(int(localDNS4.Port()))), refused)
		// A service of the user's own has endpoints there, and is asked instead.
		own := func(pods ...string) {
			protocol := corev1.ProtocolTCP
			c.serve(protocol, func(s *corev1.Service) {
				s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeClusterIP,
					[]corev1.ServicePort{{Port: 53, Protocol: protocol}}
			}, pods...)
		}
		own("b1")
		c.answers("a1", "tcp4", names, by("b1", "a1"))
		c.answers("a1", "dns/udp", names, "NOERROR "+clusterIP)
		own()
		c.answers("a1", "dns/tcp", names, "NOERROR "+clusterIP)
	})
	t.Run("services outlive Barque and are taken up again", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, nil, "b1")
		c.answers("a2", "tcp4", service, by("b1", "a2"))
		names := net.JoinHostPort(clusterIP, "53")
		c.answers("a2", "dns/udp", names, "NOERROR "+clusterIP)
		a.call("Stop", struct{}{}, nil)
		c.answers("a2", "dns/udp", names, silent) // so that it asks again
		c.answers(a.name, "dns/udp", names, silent)
		c.answers("a2", "tcp4", service, by("b1", "a2"))
		c.serve(corev1.ProtocolTCP, nil, "a1")
		a.call("Restart", struct{}{}, nil)
		c.answers("a2", "tcp4", service, by("a1", "a2"))
		c.answers("a2", "dns/udp", names, "NOERROR "+clusterIP)
	})
	t.Run("a node that has gone", func(t *testing.T) {
		c.t = t
		c.objects.Nodes = c.objects.Nodes[:1]
		c.apply()
		c.answers(a.name, "tcp4", pod("b1"), "unreachable")
	})
	t.Run("purge", func(t *testing.T) {
		c.t = t
		a.call("Stop", struct{}{}, nil)
		for range 2 {
			a.call("Purge", struct{}{}, nil)
		}
		c.answers(a.name, "tcp4", service, "unreachable")
		a.call("Restart", struct{}{}, nil)
	})
	for _, n := range c.nodes {
		n.call("Stop", struct{}{}, nil)
	}
}

// TestHealthAddresses: load balancers reach the node's address, and people at the node localhost.
func TestHealthAddresses(t *testing.T) {
	for node, want := range map[string][3]string{
		"10.0.0.1":    {"10.0.0.1:10256", "127.0.0.1:10256", "127.0.0.1:10249"},
		"fd00::10:01": {"[fd00::10:1]:10256", "[::1]:10256", "[::1]:10249"},
	} {
		health, mode := healthAddresses(netip.MustParseAddr(node))
		if got := [3]string{health[0], health[1], mode}; len(health) != 2 || got != want {
			t.Errorf("%s: %v, %s, want %v", node, health, mode, want)
		}
	}
}
