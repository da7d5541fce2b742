package admission

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/apiserver/nodeleases"
)

// TestANodeHasItsOwnAddresses: an agent has made servers call an API server as its kubelet.
func TestANodeHasItsOwnAddresses(t *testing.T) {
	machine := func(name, ip string, member bool, ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		}}
		if member {
			n.Labels = map[string]string{nodeleases.MemberLabel: ""}
		}
		return n
	}
	client := fake.NewClientset()
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	for _, n := range []*corev1.Node{
		machine("s1", "10.0.0.1", true, corev1.ConditionTrue),
		machine("swapped", "10.0.0.4", true, corev1.ConditionTrue),
		machine("kwok", "10.0.0.5", false, corev1.ConditionTrue),
		machine("gone", "10.0.0.6", false, corev1.ConditionUnknown),
	} {
		if err := core.Nodes().Informer().GetIndexer().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	taken := func(node string, _ corev1.NodeAddressType, ip netip.Addr) error {
		if ip == netip.MustParseAddr("10.0.0.1") && node != "s1" {
			return errors.New(`it is that of server "s1"`)
		}
		return nil
	}
	n := NewNodeRestriction(core, client, grants{}, func(string) bool { return true }, taken)
	write := func(who string, member bool, old []corev1.NodeAddress, addresses ...corev1.NodeAddress) error {
		obj := machine(who, "", member, corev1.ConditionTrue)
		obj.Status.Addresses = addresses
		r := request{name: who, resource: "nodes", subresource: "status", op: admission.Update, obj: obj,
			user: &user.DefaultInfo{Name: "system:node:" + who, Groups: []string{user.NodesGroup}}}
		before := obj.DeepCopy()
		before.Status.Addresses = old
		r.old = before
		return n.Validate(t.Context(), r.attributes(), nil)
	}
	ip := func(address string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address}
	}
	name := func(address string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeHostName, Address: address}
	}
	for what, c := range map[string]struct {
		who    string
		member bool
		old    []corev1.NodeAddress
		new    []corev1.NodeAddress
		want   string
	}{
		"its own": {"a1", true, nil,
			[]corev1.NodeAddress{ip("10.0.0.9"), ip("fd00::9"), name("a1")}, ""},
		"a server's": {"a1", true, nil,
			[]corev1.NodeAddress{ip("10.0.0.9"), ip("10.0.0.1")}, `that of server "s1"`},
		"a server's, as IPv6": {"a1", true, nil, []corev1.NodeAddress{ip("::ffff:10.0.0.1")},
			`that of server "s1"`},
		"a server's, as a name": {"a1", true, nil, []corev1.NodeAddress{name("10.0.0.1")},
			`that of server "s1"`},
		"a server's, as external": {"a1", true, nil,
			[]corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "10.0.0.1"}}, `that of server "s1"`},
		"a server's, of a foreign node": {"f1", false, nil, []corev1.NodeAddress{ip("10.0.0.1")},
			`that of server "s1"`},
		"the server's own": {"s1", true, nil, []corev1.NodeAddress{ip("10.0.0.1")}, ""},
		"loopback": {"a1", true, nil, []corev1.NodeAddress{ip("127.0.0.1")},
			"cannot reach"},
		"loopback, as IPv6": {"a1", true, nil, []corev1.NodeAddress{ip("::ffff:127.0.0.1")},
			"cannot reach"},
		"unspecified": {"a1", true, nil, []corev1.NodeAddress{ip("::")}, "cannot reach"},
		"multicast": {"a1", true, nil, []corev1.NodeAddress{ip("224.0.0.1")},
			"cannot reach"},
		"the metadata service": {"a1", true, nil, []corev1.NodeAddress{ip("169.254.169.254")},
			"cannot reach"},
		"a link's": {"a1", true, nil, []corev1.NodeAddress{ip("fe80::1%eth0")},
			"cannot reach"},
		"a foreign node's": {"a1", true, nil, []corev1.NodeAddress{ip("10.0.0.5")},
			`that of node "kwok"`},
		"a foreign node's that is gone": {"a1", true, nil, []corev1.NodeAddress{ip("10.0.0.6")}, ""},
		"a member's former one":         {"a1", true, nil, []corev1.NodeAddress{ip("10.0.0.4")}, ""},
		"shared by foreign nodes":       {"f1", false, nil, []corev1.NodeAddress{ip("10.0.0.5")}, ""},
		"the name of a server": {"a1", true, nil, []corev1.NodeAddress{name("s1")},
			"name of another node"},
		"localhost": {"a1", true, nil, []corev1.NodeAddress{name("localhost")},
			"cannot reach"},
		"its own name alone": {"a1", true, nil, []corev1.NodeAddress{name("a1")}, ""},
		"a machine's name that is a node's, too": {"a1", true, nil, []corev1.NodeAddress{ip("10.0.0.9"), name("s1")},
			""},
		"one that it has had": {"a1", true, []corev1.NodeAddress{ip("10.0.0.1")},
			[]corev1.NodeAddress{ip("10.0.0.1"), name("a1")}, ""},
		"another type of one that it has had": {"a1", true, []corev1.NodeAddress{ip("10.0.0.1")},
			[]corev1.NodeAddress{name("10.0.0.1")}, `that of server "s1"`},
		"a server's, where it has had its own IP": {"a1", true, []corev1.NodeAddress{ip("10.0.0.9")},
			[]corev1.NodeAddress{ip("10.0.0.1")}, `that of server "s1"`},
	} {
		err := write(c.who, c.member, c.old, c.new...)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
