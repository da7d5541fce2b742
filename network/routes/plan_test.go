package routes

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func node(name, share, ip string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: share}}
	if ip != "" {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: ip}}
	}
	return n
}

func TestPlan(t *testing.T) {
	const self = "node-1"
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	services := Route{Destination: prefix("10.43.0.0/16"), Kind: Local}
	mine := Route{Destination: prefix("10.42.1.0/24"), Kind: Unreachable}
	via := func(share, gateway string) Route {
		return Route{Destination: prefix(share), Kind: Via, Gateway: addr(gateway)}
	}
	me := node(self, "10.42.1.0/24", "192.0.2.1")
	for name, test := range map[string]struct {
		nodes []*corev1.Node
		own   string
		want  []Route
	}{
		"alone, without a share": {nodes: []*corev1.Node{node(self, "", "192.0.2.1")}, want: []Route{services}},
		"alone":                  {nodes: []*corev1.Node{me}, own: "10.42.1.0/24", want: []Route{services, mine}},
		"others": {nodes: []*corev1.Node{me, node("node-2", "10.42.2.0/24", "192.0.2.2"), node("node-3", "10.42.3.0/24", "192.0.2.3")},
			own: "10.42.1.0/24", want: []Route{services, mine, via("10.42.2.0/24", "192.0.2.2"), via("10.42.3.0/24", "192.0.2.3")}},
		"others that are not ready for it": {nodes: []*corev1.Node{me, node("node-2", "", "192.0.2.2"), node("node-3", "10.42.3.0/24", ""),
			node("node-4", "fd00::/64", "192.0.2.4"), node("node-5", "10.42.5.0/24", "fd00::5")},
			own: "10.42.1.0/24", want: []Route{services, mine}},
		"a share like ours is a mistake": {nodes: []*corev1.Node{node("node-0", "10.42.0.0/20", "192.0.2.9"), me},
			own: "10.42.1.0/24", want: []Route{services, mine}},
		"two with one share: always the same": {nodes: []*corev1.Node{node("node-3", "10.42.2.0/24", "192.0.2.3"), node("node-2", "10.42.2.0/24", "192.0.2.2"), me},
			own: "10.42.1.0/24", want: []Route{services, mine, via("10.42.2.0/24", "192.0.2.2")}},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[netip.Prefix]Route{}
			for _, route := range test.want {
				want[route.Destination] = route
			}
			got, own := Plan(self, services.Destination, test.nodes)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			if own.IsValid() != (test.own != "") || own.IsValid() && own.String() != test.own {
				t.Errorf("own share %v, want %q", own, test.own)
			}
		})
	}
}
