package network

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/network/overlay"
)

// startFarCluster is a cluster of three nodes in three layer-2 networks. This namespace is the
// router between them, which knows no pods. Their overlay is auto unless modes say otherwise.
func startFarCluster(t *testing.T, modes ...overlay.Mode) *cluster {
	t.Helper()
	up(t, "lo")
	must(t, enableForwarding(nil, true, true))
	c := newCluster(t)
	for i := range 3 {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("lan%d", i+1)
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
		bridge := up(t, attrs.Name)
		must(t, netlink.AddrAdd(bridge, address(fmt.Sprintf("192.168.7%d.1/24", i+1))))
		must(t, netlink.AddrAdd(bridge, quiet(fmt.Sprintf("fd7%d::1/64", i+1))))
		mode := overlay.Auto
		if i < len(modes) {
			mode = modes[i]
		}
		c.join(startNodeAt(t, bridge, i+1, StartArgs{
			Overlay:  mode,
			IPs:      []string{fmt.Sprintf("192.168.7%d.11/24", i+1), fmt.Sprintf("fd7%d::11/64", i+1)},
			Gateways: []string{fmt.Sprintf("192.168.7%d.1", i+1), fmt.Sprintf("fd7%d::1", i+1)},
			Networks: []string{"10.42.0.0/16", "fd00:42::/56", "10.43.0.0/16", "fd00:43::/112"},
		}), fmt.Sprintf("10.42.%d.0/24", i+1), fmt.Sprintf("fd00:42:0:%d::/64", i+1))
		c.objects.Nodes[i].Status.Addresses = append(c.objects.Nodes[i].Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd7%d::11", i+1)})
	}
	c.objects.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	c.apply()
	c.announce()
	return c
}

// quiet is an IPv6 address that can be used at once.
func quiet(cidr string) *netlink.Addr {
	addr := address(cidr)
	addr.Flags = unix.IFA_F_NODAD
	return addr
}

// join adds a node with its shares of the pod network.
func (c *cluster) join(n *node, shares ...string) {
	c.nodes = append(c.nodes, n)
	c.objects.Nodes = append(c.objects.Nodes, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec:       corev1.NodeSpec{PodCIDR: shares[0], PodCIDRs: shares},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.ip}}},
	})
}

// announce gives all nodes what each says of itself, as the API server does.
func (c *cluster) announce() {
	c.t.Helper()
	for i, n := range c.nodes {
		n.call("Annotations", n.name, &c.objects.Nodes[i].Annotations)
	}
	c.apply()
}

// mtu waits until a pod's link has the MTU.
func (c *cluster) mtu(pod string, want int) {
	c.t.Helper()
	var got int
	await.True(c.t, fmt.Sprintf("MTU %d of %s", want, pod), func() bool {
		c.on[pod].call("PodMTU", pod, &got)
		return got == want
	})
}

// TestLayer3 sends real packets between nodes of three layer-2 networks.
func TestLayer3(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	c := startFarCluster(t)
	for i, n := range c.nodes {
		c.start(n, "default", fmt.Sprintf("p%d", i+1), nil)
	}
	c.apply()
	at := func(pod string) string { return net.JoinHostPort(c.ips[pod], fmt.Sprint(podPort)) }
	at6 := func(pod string) string { return net.JoinHostPort(c.ips6[pod], fmt.Sprint(podPort)) }
	by := func(pod, client string) string { return pod + " " + client }
	pairs := [][2]string{{"p1", "p2"}, {"p2", "p3"}, {"p3", "p1"}, {"p2", "p1"}}
	everyPair := func(t *testing.T) {
		t.Helper()
		c.t = t
		for _, pair := range pairs {
			for _, transport := range []string{"tcp", "udp"} {
				c.answers(pair[0], transport+"4", at(pair[1]), by(pair[1], c.ips[pair[0]]))
				c.answers(pair[0], transport+"6", at6(pair[1]), by(pair[1], c.ips6[pair[0]]))
			}
		}
	}
	t.Run("pods", everyPair)
	t.Run("whole packets", func(t *testing.T) {
		c.t = t
		for _, pair := range pairs {
			c.mtu(pair[0], 1450)
			c.answers(pair[0], "whole/1450", at(pair[1]), by(pair[1], c.ips[pair[0]]))
			c.answers(pair[0], "whole/1450", at6(pair[1]), by(pair[1], c.ips6[pair[0]]))
			c.answersOnce(pair[0], "whole/1451", at(pair[1]), "message too long")
			c.answersOnce(pair[0], "whole/1451", at6(pair[1]), "message too long")
		}
	})
	t.Run("nodes", func(t *testing.T) {
		c.t = t
		c.answers("node-1", "tcp4", at("p2"), by("p2", "10.42.1.0"))
		c.answers("node-2", "tcp4", at("p2"), by("p2", "10.42.2.1"))
		c.answers("node-1", "tcp6", at6("p2"), by("p2", "fd00:42:0:1::"))
	})
	t.Run("services", func(t *testing.T) {
		c.t = t
		c.serve(corev1.ProtocolTCP, nil, "p1", "p2", "p3")
		service := net.JoinHostPort(clusterIP, "80")
		c.answers("p1", "tcp4", service, by("p1", "10.42.1.1"), by("p2", c.ips["p1"]), by("p3", c.ips["p1"]))
		c.serve(corev1.ProtocolTCP, nil, "p3")
		c.answers("node-1", "tcp4", service, by("p3", "10.42.1.0"))
		c.answers("lan", "tcp4", net.JoinHostPort(c.nodes[0].ip, fmt.Sprint(nodePort)), by("p3", "10.42.1.0"))
		c.answers("p1", "dns/udp", net.JoinHostPort(clusterIP, "53"), "NOERROR "+clusterIP)
	})
	t.Run("another MTU below", func(t *testing.T) {
		c.t = t
		c.nodes[0].call("SetMTU", 1400, nil)
		c.mtu("p1", 1350)
		c.answers("p1", "whole/1350", at("p2"), by("p2", c.ips["p1"]))
		c.nodes[0].call("SetMTU", 1500, nil)
		c.mtu("p1", 1450)
	})
	t.Run("the overlay outlives Barque and is taken up again", func(t *testing.T) {
		c.t = t
		c.nodes[0].call("Stop", struct{}{}, nil)
		c.answers("p1", "tcp4", at("p2"), by("p2", c.ips["p1"]))
		var before, after int
		c.nodes[0].call("OverlayIndex", struct{}{}, &before)
		c.nodes[0].call("Restart", struct{}{}, nil)
		everyPair(t)
		c.nodes[0].call("OverlayIndex", struct{}{}, &after)
		if before == 0 || before != after {
			t.Errorf("the link had the index %d and has %d", before, after)
		}
	})
	t.Run("a node with another address", func(t *testing.T) {
		c.t = t
		c.nodes[1].call("Move",
			StartArgs{IPs: []string{"192.168.72.11/24", "192.168.72.99/24", "fd72::11/64"},
				Gateways: []string{"192.168.72.1"}}, nil)
		c.nodes[1].ip = "192.168.72.99"
		c.objects.Nodes[1].Status.Addresses[0].Address = c.nodes[1].ip
		c.apply()
		c.announceMoved(1)
		everyPair(t)
	})
	t.Run("a node that has gone", func(t *testing.T) {
		c.t = t
		c.objects.Nodes = c.objects.Nodes[:2]
		c.apply()
		c.answers("p1", "tcp4", at("p3"), "timeout") // the router knows no pods
		c.answers("p1", "tcp4", at("p2"), by("p2", c.ips["p1"]))
	})
	t.Run("alone, without an overlay", func(t *testing.T) {
		c.t = t
		c.objects.Nodes = c.objects.Nodes[:1]
		c.apply()
		c.mtu("p1", 1500)
		index := 1
		await.True(t, "the link is removed", func() bool {
			c.nodes[0].call("OverlayIndex", struct{}{}, &index)
			return index == 0
		})
	})
	t.Run("purge", func(t *testing.T) {
		c.t = t
		for _, n := range c.nodes {
			n.call("Stop", struct{}{}, nil)
			n.call("Purge", struct{}{}, nil)
			var index int
			if n.call("OverlayIndex", struct{}{}, &index); index != 0 {
				t.Errorf("%s: the link is left", n.name)
			}
		}
	})
}

// announceMoved gives all nodes what a node that has moved says of itself.
func (c *cluster) announceMoved(i int) {
	c.t.Helper()
	n := c.nodes[i]
	await.True(c.t, "the new address is told", func() bool {
		n.call("Annotations", n.name, &c.objects.Nodes[i].Annotations)
		endpoint, _, err := overlay.EndpointOf(c.objects.Nodes[i])
		return err == nil && endpoint.Address.String() == n.ip
	})
	c.apply()
}
