package network

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const clusterIP6 = "fd00:43::a"

// startCluster6 is a cluster of two nodes in one layer-2 network, with IPv6, and with IPv4 beside
// it.
func startCluster6(t *testing.T, with4 bool) *cluster {
	t.Helper()
	bridge := lan(t)
	must(t, enableForwarding(nil, false, true))
	must(t, netlink.AddrAdd(bridge, quiet("fd77::1/64")))
	c := newCluster(t)
	for i := range 2 {
		args := StartArgs{IPs: []string{fmt.Sprintf("fd77::1%d/64", i+1)},
			Networks: []string{"fd00:42::/56", "fd00:43::/112"}, DNS: clusterIP6}
		shares := []string{fmt.Sprintf("fd00:42:0:%d::/64", i+1)}
		if with4 {
			args.IPs = append([]string{fmt.Sprintf("192.168.77.1%d/24", i+1)}, args.IPs...)
			args.Networks = []string{"10.42.0.0/16", "fd00:42::/56", "10.43.0.0/16", "fd00:43::/112"}
			args.DNS = clusterIP
			shares = append([]string{fmt.Sprintf("10.42.%d.0/24", i+1)}, shares...)
		}
		c.join(startNodeAt(t, bridge, i+1, args), shares...)
		if with4 {
			c.objects.Nodes[i].Status.Addresses = append(c.objects.Nodes[i].Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd77::1%d", i+1)})
		}
	}
	c.objects.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	c.apply()
	return c
}

// TestIPv6 sends real packets between two nodes, with IPv6 alone and beside IPv4.
func TestIPv6(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	c := startCluster6(t, false)
	c.testIPv6(t, c.ips, "fd00:43::a")
}

// TestDualStack is TestIPv6 with IPv4 beside it.
func TestDualStack(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	c := startCluster6(t, true)
	c.testIPv6(t, c.ips6, clusterIP)
}

func (c *cluster) testIPv6(t *testing.T, ips map[string]string, names string) {
	a, b := c.nodes[0], c.nodes[1]
	dual := names == clusterIP
	for name, n := range map[string]*node{"a1": a, "b1": b} {
		c.start(n, "default", name, func(p *corev1.Pod) { p.Labels = map[string]string{"name": name} })
	}
	c.apply()
	pod := func(name string) string { return net.JoinHostPort(ips[name], fmt.Sprint(podPort)) }
	by := func(pod, client string) string {
		if ip, isPod := ips[client]; isPod {
			client = ip
		}
		return pod + " " + client
	}
	const refused, silent = "refused", "timeout"
	t.Run("pods", func(t *testing.T) {
		c.t = t
		for _, transport := range []string{"tcp6", "udp6"} {
			c.answers("a1", transport, pod("b1"), by("b1", "a1"))
			c.answers("b1", transport, pod("a1"), by("a1", "b1"))
		}
		c.answers(a.name, "tcp6", pod("b1"), by("b1", "fd77::11"))
		c.answers(a.name, "tcp6", pod("a1"), by("a1", "fd00:42:0:1::1"))
		if dual {
			c.answers("a1", "tcp4", net.JoinHostPort(c.ips["b1"], fmt.Sprint(podPort)), "b1 "+c.ips["a1"])
		}
		// The kernel drops an ICMP error that comes while connect has the socket, as it does where
		// all nodes are on one machine. The one to the second SYN, a second later, is heard.
		c.answersOnce("a1", "patiently/tcp6", "[fd00:42:0:2::99]:80", "unreachable")
	})
	t.Run("the world, with the node's address", func(t *testing.T) {
		c.t = t
		must(t, listen("world"))
		c.answers("a1", "tcp6", fmt.Sprintf("[fd77::1]:%d", podPort), by("world", "fd77::11"))
	})
	service := net.JoinHostPort(clusterIP6, "80")
	serve := func(protocol corev1.Protocol, change func(*corev1.Service), pods ...string) {
		c.serve(protocol, func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{clusterIP6}
			if s.Spec.ClusterIP = clusterIP6; dual {
				s.Spec.ClusterIP, s.Spec.ClusterIPs = clusterIP, []string{clusterIP, clusterIP6}
			}
			if change != nil {
				change(s)
			}
		}, pods...)
	}
	t.Run("services", func(t *testing.T) {
		c.t = t
		serve(corev1.ProtocolTCP, nil, "a1", "b1")
		c.answers("b1", "tcp6", service, by("a1", "b1"), by("b1", "fd00:42:0:2::1"))
		c.answers(a.name, "tcp6", service, by("a1", "fd00:42:0:1::1"), by("b1", "fd77::11"))
		c.answers("lan", "tcp6", fmt.Sprintf("[fd77::11]:%d", nodePort), by("a1", "fd00:42:0:1::1"),
			by("b1", "fd77::11"))
		if dual {
			c.answers("b1", "tcp4", net.JoinHostPort(clusterIP, "80"), "a1 "+c.ips["b1"], "b1 10.42.2.1")
			c.answers("lan", "tcp4", fmt.Sprintf("192.168.77.11:%d", nodePort), "a1 10.42.1.1", "b1 192.168.77.11")
		}
		serve(corev1.ProtocolTCP, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			"b1")
		c.answers("a1", "tcp6", service, by("b1", "a1"))
		serve(corev1.ProtocolTCP, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			"a1", "b1")
		c.answers("a1", "tcp6", service, by("b1", "a1"))
		serve(corev1.ProtocolTCP, nil)
		c.answersOnce("a1", "tcp6", service, refused)
	})
	t.Run("UDP follows its backends", func(t *testing.T) {
		c.t = t
		serve(corev1.ProtocolUDP, nil, "a1")
		c.answers("b1", "udp6", service, by("a1", "b1"))
		serve(corev1.ProtocolUDP, nil, "b1")
		c.answers("a1", "udp6", service, by("b1", "a1"))
		serve(corev1.ProtocolUDP, nil)
		c.answersOnce("a1", "udp6", service, refused)
	})
	t.Run("names", func(t *testing.T) {
		c.t = t
		serve(corev1.ProtocolTCP, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }, "a1")
		want := "NOERROR " + clusterIP6
		if dual {
			want = "NOERROR " + clusterIP + " " + clusterIP6
		}
		for _, from := range []string{"a1", "b1", a.name} {
			c.answers(from, "dns/udp", net.JoinHostPort(names, "53"), want)
			c.answers(from, "dns/tcp", net.JoinHostPort(names, "53"), want)
		}
	})
	t.Run("policies", func(t *testing.T) {
		c.t = t
		c.objects.Policies = []*networkingv1.NetworkPolicy{
			networkPolicy("default", "deny", networkingv1.NetworkPolicySpec{PodSelector: *labelled("name", "a1")})}
		c.apply()
		c.answers("b1", "tcp6", pod("a1"), silent)
		c.answers("a1", "tcp6", pod("b1"), by("b1", "a1"))
		c.answers(a.name, "tcp6", pod("a1"), by("a1", "fd00:42:0:1::1"))
		c.objects.Policies = append(c.objects.Policies,
			networkPolicy("default", "allow", networkingv1.NetworkPolicySpec{
				PodSelector: *labelled("name", "a1"),
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
					{IPBlock: &networkingv1.IPBlock{CIDR: "fd00:42:0:2::/64",
						Except: []string{"fd00:42:0:2:8000::/65"}}},
				}}},
			}))
		c.apply()
		c.answers("b1", "tcp6", pod("a1"), by("a1", "b1"))
		if dual {
			c.answers("b1", "tcp4", net.JoinHostPort(c.ips["a1"], fmt.Sprint(podPort)), silent)
		}
		c.objects.Policies[1].Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{
			{PodSelector: labelled("name", "b1")}}
		c.apply()
		c.answers("b1", "tcp6", pod("a1"), by("a1", "b1"))
		if dual {
			c.answers("b1", "tcp4", net.JoinHostPort(c.ips["a1"], fmt.Sprint(podPort)), "a1 "+c.ips["b1"])
		}
	})
	t.Run("purge", func(t *testing.T) {
		c.t = t
		for _, n := range c.nodes {
			n.call("Stop", struct{}{}, nil)
			n.call("Purge", struct{}{}, nil)
		}
		c.answers(a.name, "tcp6", service, "unreachable")
	})
}
