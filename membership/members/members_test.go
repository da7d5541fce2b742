package members

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
)

var marks = Marks{IsMember: nodeleases.IsMember, IsServer: func(n *corev1.Node) bool { _, marked := n.Labels[noderole.Label]; return marked }}

// TestApart: an agent that gossip does not know is told; a node of others, which gossip never
// knows, is not.
func TestApart(t *testing.T) {
	node := func(name string, change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{nodeleases.MemberLabel: ""}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if change != nil {
			change(n)
		}
		return n
	}
	inPool := func(name string) (gossip.Member, bool) { return gossip.Member{}, name == "here" }
	for _, c := range []struct {
		node *corev1.Node
		want bool
	}{
		{node("apart", nil), true},
		{node("here", nil), false},
		{node("foreign", func(n *corev1.Node) { n.Labels = nil }), false},
		{node("older", func(n *corev1.Node) {
			n.Labels, n.Status.NodeInfo.KubeletVersion = nil, version.Kubernetes+"+barque.v1"
		}), true},
		{node("server", func(n *corev1.Node) { n.Labels[noderole.Label] = "" }), false},
		{node("ill", func(n *corev1.Node) { n.Status.Conditions = nil }), false},
	} {
		if got := marks.apart(c.node, inPool); got != c.want {
			t.Errorf("%s: apart is %t", c.node.Name, got)
		}
	}
}

// TestFormerServersGetNoKeys: nobody waits for a server that was taken out, although it has its
// Node.
func TestFormerServersGetNoKeys(t *testing.T) {
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	server, agent := map[string]string{noderole.Label: ""}, map[string]string{nodeleases.MemberLabel: ""}
	older := node("older", nil) // its machine has been away since before the label
	older.Status.NodeInfo.KubeletVersion = version.Kubernetes + "+barque.v1"
	got := marks.addAway([]keyring.Member{{Name: "s1", Role: pki.RoleServer, Alive: true, State: "alive"}, {Name: "a1", Role: pki.RoleAgent, Alive: true, State: "alive"}},
		[]Server{{Name: "s1"}, {Name: "s2"}}, []*corev1.Node{node("s1", server), node("s2", server), node("s3", server), node("a1", agent), node("a2", agent), node("foreign", nil), older})
	want := []keyring.Member{
		{Name: "s1", Role: pki.RoleServer, Alive: true, State: "alive"},
		{Name: "a1", Role: pki.RoleAgent, Alive: true, State: "alive"},
		{Name: "s2", Role: pki.RoleServer, State: "not in the pool"},
		{Name: "s3", Role: pki.RoleServer, State: "not in the pool", Barred: `"s3" is no server of this cluster any more`},
		{Name: "a2", Role: pki.RoleAgent, State: "not in the pool"},
		{Name: "older", Role: pki.RoleAgent, State: "not in the pool"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
