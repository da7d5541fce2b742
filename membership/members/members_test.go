package members

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

var marks = Marks{IsMember: nodeleases.IsMember,
	IsServer: func(n *corev1.Node) bool { _, marked := n.Labels[noderole.Label]; return marked }}

// TestApart: an agent that gossip does not know is reported; a node of others, which gossip never
// knows, is not.
func TestApart(t *testing.T) {
	node := func(name string, change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{nodeleases.MemberLabel: ""}}}
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

// TestProfiles: those of agents of this version are known, and no others.
func TestProfiles(t *testing.T) {
	node := func(name string, labels ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		for i := 0; i < len(labels); i += 2 {
			n.Labels[labels[i]] = labels[i+1]
		}
		return n
	}
	got := marks.profiles([]*corev1.Node{
		node("hardened", nodeleases.MemberLabel, "", ProfileLabel, "cis"),
		node("plain", nodeleases.MemberLabel, "", ProfileLabel, "none"),
		node("earlier", nodeleases.MemberLabel, ""), node("foreign", ProfileLabel, "cis"),
		node("server", nodeleases.MemberLabel, "", ProfileLabel, "cis", noderole.Label, ""),
	})
	if want := map[string]string{"hardened": "cis", "plain": "none"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestUnready: a Node that is not Ready is reported with its role, since when and why.
func TestUnready(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(at.Add(-time.Hour))}}
	node.Status.NodeInfo.KubeletVersion = "v1.37.2"
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}}
	if u := marks.unready(
		node); u != (Unready{Name: "n", Address: "10.0.0.9", Version: "v1.37.2", Since: at.Add(-time.Hour),
		Why: "its kubelet has not reported a state"}) {
		t.Errorf("without a state: %+v", u)
	}
	node.Labels = map[string]string{nodeleases.MemberLabel: ""}
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: at, Message: "no sign of life"}}
	if u := marks.unready(node); u.Role != pki.RoleAgent || !u.Since.Equal(at.Time) || u.Why != "no sign of life" ||
		!u.Unknown || isReady(node) {
		t.Errorf("of an agent: %+v", u)
	}
	node.Labels[noderole.Label] = ""
	if u := marks.unready(node); u.Role != pki.RoleServer {
		t.Errorf("of a server: %+v", u)
	}
	node.Status.Conditions[0].Status = corev1.ConditionFalse
	if marks.unready(node).Unknown {
		t.Error("a kubelet that says that it is not Ready is silent")
	}
	node.Status.Conditions[0].Status = corev1.ConditionTrue
	if !isReady(node) {
		t.Error("it is not Ready")
	}
}

// TestFormerServersGetNoKeys: no rollover waits for a server that was taken out, although it has
// its Node.
func TestFormerServersGetNoKeys(t *testing.T) {
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	server, agent := map[string]string{noderole.Label: ""}, map[string]string{nodeleases.MemberLabel: ""}
	older := node("older", nil) // its machine has been away since before the label
	older.Status.NodeInfo.KubeletVersion = version.Kubernetes + "+barque.v1"
	is := sharers{Marks: marks, servers: []Server{{Name: "s1"}, {Name: "s2"}},
		pool: []gossip.Member{{Name: "s1", Role: pki.RoleServer, State: gossip.Alive},
			{Name: "a1", Role: pki.RoleAgent, State: gossip.Alive},
			{Name: "new", Role: pki.RoleAgent, State: gossip.Alive}},
		nodes: []*corev1.Node{node("s1", server), node("s2", server), node("s3", server), node("a1", agent),
			node("a2", agent), node("foreign", nil), older}}
	want := []rollover.Member{
		{Name: "s1", Role: pki.RoleServer, Alive: true, State: "alive"},
		{Name: "a1", Role: pki.RoleAgent, Alive: true, State: "alive"},
		{Name: "new", Role: pki.RoleAgent, Alive: true, State: "alive"}, // as long as not all Nodes are known
		{Name: "s2", Role: pki.RoleServer, State: "not in the pool"},
		{Name: "s3", Role: pki.RoleServer, State: "not in the pool",
			Barred: `"s3" is no server of this cluster any more`},
		{Name: "a2", Role: pki.RoleAgent, State: "not in the pool"},
		{Name: "older", Role: pki.RoleAgent, State: "not in the pool"},
	}
	for range 2 {
		if got := is.list(time.Now(), func(gossip.Facts) uint64 { return 0 }); !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		is.synced, want[2].Barred = true, `"new" is no node of this cluster any more: it has no Node object`
	}
}

// TestEarlierVersionsAndForms: servers that do not say that they handle a form of CAs are named,
// and those that have said nothing yet; agents and former servers do not count.
func TestEarlierVersionsAndForms(t *testing.T) {
	member := func(name, role string, form int) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: gossip.Alive, Facts: gossip.Facts{CAs: form}}
	}
	is := sharers{Marks: marks, servers: []Server{{Name: "s1"}, {Name: "s2"}, {Name: "s3"}, {Name: "s5"}}, synced: true,
		pool: []gossip.Member{member("s1", pki.RoleServer, pki.BundleForm), member("s2", pki.RoleServer, 0),
			member("s4", pki.RoleServer, 0), member("a1", pki.RoleAgent, 0),
			member("s5", pki.RoleServer, pki.ExternalForm)}}
	for form, want := range map[int][]string{0: nil, pki.ExternalForm: {"s2", "s3"},
		pki.SeparateForm: {"s2", "s5", "s3"}} {
		if got := is.earlierCAs(form, time.Now()); !slices.Equal(got, want) {
			t.Errorf("form %d: %q, want %q", form, got, want)
		}
	}
}

// A removed node that goes on to gossip holds no exchange up; a node that is away does, and so does
// one that has joined just now.
func TestWhomAnExchangeWaitsFor(t *testing.T) {
	now := time.Now()
	member := func(name, role string, state gossip.State, since time.Duration) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: state, Since: now.Add(-since),
			Facts: gossip.Facts{Trust: 1}}
	}
	node := func(name, label string, made time.Duration) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: ""},
				CreationTimestamp: metav1.NewTime(now.Add(-made))}}
	}
	// made anew after another machine of the name went
	nodes := []*corev1.Node{node("a7", nodeleases.MemberLabel, time.Minute)}
	for _, name := range []string{"a1", "a2", "a6"} {
		nodes = append(nodes, node(name, nodeleases.MemberLabel, 2*time.Hour))
	}
	for _, name := range []string{"s1", "s3", "s5", "a8"} {
		nodes = append(nodes, node(name, noderole.Label, 2*time.Hour))
	}
	is := sharers{Marks: marks, servers: []Server{{Name: "s1"}, {Name: "s2"}, {Name: "s4"}}, nodes: nodes, synced: true,
		pool: []gossip.Member{
			member("s1", pki.RoleServer, gossip.Alive, time.Hour),
			member("s2", pki.RoleServer, gossip.Dead, time.Hour),
			member("s3", pki.RoleServer, gossip.Alive, time.Hour),   // removed; its Node is there yet
			member("s5", pki.RoleServer, gossip.Dead, time.Hour),    // removed and stopped; its Node is there yet
			member("s6", pki.RoleServer, gossip.Alive, time.Minute), // removed, without a Node
			member("a1", pki.RoleAgent, gossip.Alive, time.Hour),
			member("a2", pki.RoleAgent, gossip.Dead, time.Hour),
			member("a3", pki.RoleAgent, gossip.Alive, time.Hour),   // removed
			member("a4", pki.RoleAgent, gossip.Dead, time.Second),  // removed and stopped
			member("a5", pki.RoleAgent, gossip.Alive, time.Second), // has no Node yet
			member("a7", pki.RoleServer, gossip.Dead, time.Hour),   // was a server of the name, which is an agent's now
		}}
	var got []string
	for _, m := range is.cas(now) {
		got = append(got, fmt.Sprintf("%s %t %d", m.Name, m.Alive, m.Generation))
	}
	slices.Sort(got)
	// a8 is off, and people have marked it as a server.
	want := []string{"a1 true 1", "a2 false 1", "a5 true 1", "a6 false 0", "a7 false 0", "a8 false 0", "s1 true 1",
		"s2 false 1", "s4 false 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestAgentsWithoutNodes: a living agent that the API has no Node of is not overlooked.
func TestAgentsWithoutNodes(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	nodes := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Nodes()
	if err := nodes.Informer().GetStore().Add(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a1"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort("10.0.0.2:6445")
	m := &Members{Nodes: nodes, Marks: marks, Pool: pool{
		{Name: "a1", Role: pki.RoleAgent, State: gossip.Alive, Since: at},
		{Name: "a2", Role: pki.RoleAgent, State: gossip.Alive, Since: at, Addr: addr,
			Facts: gossip.Facts{Version: "v1"}},
		{Name: "a3", Role: pki.RoleAgent, State: gossip.Dead, Since: at},
		{Name: "s1", Role: pki.RoleServer, State: gossip.Alive, Since: at}, // it runs with --no-node
	}}
	want := []Unready{
		{Name: "a2", Role: pki.RoleAgent, Address: "10.0.0.2", Version: "v1", Since: at,
			Why: "its kubelet has not registered it", Missing: true}}
	if got := m.Unready(); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

type pool []gossip.Member

func (p pool) Members() []gossip.Member { return p }
func (p pool) Member(name string) (gossip.Member, bool) {
	for _, m := range p {
		if m.Name == name {
			return m, true
		}
	}
	return gossip.Member{}, false
}

// TestOfServer: no agent gets any address of a server. Gossip has the first one only, and the
// server's Node has the others. The addresses of a former server's Node are free.
func TestOfServer(t *testing.T) {
	nodes := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Nodes()
	add := func(name string, addresses ...string) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a})
		}
		if err := nodes.Informer().GetStore().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	add("s1", "s1", "10.0.0.1", "fd00::1", "192.168.0.1")
	add("s9", "10.0.0.9")
	m := &Members{
		Servers: func() []Server { return []Server{{Name: "s1", Addr: netip.MustParseAddr("10.0.0.1")}} },
		Pool: pool{
			{Name: "s1", Addr: netip.MustParseAddrPort("10.0.0.1:6445"), Role: pki.RoleServer, State: gossip.Alive}},
		Nodes: nodes, Marks: marks,
	}
	for addr, taken := range map[string]bool{"10.0.0.1": true, "fd00::1": true, "192.168.0.1": true, "10.0.0.9": false,
		"10.0.0.2": false} {
		if err := m.OfServer("a1", netip.MustParseAddr(addr)); (err != nil) != taken ||
			taken && !strings.Contains(err.Error(), "--node-ip") {
			t.Errorf("%s: %v", addr, err)
		}
		if err := m.OfServer("s1", netip.MustParseAddr(addr)); err != nil {
			t.Errorf("the server itself at %s: %v", addr, err)
		}
	}
}

// TestNameTaken: a machine gets no name of a living node or of a member of the store, and hears the
// way that its case has.
func TestNameTaken(t *testing.T) {
	m := &Members{
		Servers: func() []Server { return []Server{{Name: "s1"}, {Name: "s2"}} },
		Pool: pool{
			{Name: "s1", Role: pki.RoleServer, State: gossip.Alive, Addr: netip.MustParseAddrPort("10.0.0.1:7946")},
			{Name: "s2", Role: pki.RoleServer, State: gossip.Dead},
			{Name: "s3", Role: pki.RoleServer, State: gossip.Dead},
			{Name: "a1", Role: pki.RoleAgent, State: gossip.Alive, Addr: netip.MustParseAddrPort("10.0.0.9:7946")},
			{Name: "a2", Role: pki.RoleAgent, State: gossip.Dead},
			{Name: "a3", Role: pki.RoleAgent, State: gossip.Left},
		},
	}
	for name, want := range map[string][]string{
		"s1": {"is alive at 10.0.0.1", "--name", "join with --replace, which waits until its end is noticed"},
		"s2": {"is a member of the store", "--name", "--replace"},
		"a1": {"is alive at 10.0.0.9", "--name", "its end is noticed within some seconds: join again then"},
		"s3": nil, "a2": nil, "a3": nil, "new": nil,
	} {
		err := m.NameTaken(name)
		if (err == nil) != (want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q", name, err, part)
			}
		}
		if name == "a1" && strings.Contains(err.Error(), "--replace") {
			t.Errorf("an agent has no --replace: %v", err)
		}
	}
}

// TestAddressTaken: a machine at the address of another one hears both ways out, as that one may
// have died a moment before.
func TestAddressTaken(t *testing.T) {
	at := func(ip string) netip.AddrPort { return netip.MustParseAddrPort(ip + ":7946") }
	m := &Members{
		Servers: func() []Server {
			return []Server{{Name: "s1", Addr: netip.MustParseAddr("10.0.0.1")},
				{Name: "s2", Addr: netip.MustParseAddr("10.0.0.2")}}
		},
		Pool: pool{
			{Name: "s1", Role: pki.RoleServer, State: gossip.Dead, Addr: at("10.0.0.1")},
			{Name: "a1", Role: pki.RoleAgent, State: gossip.Alive, Addr: at("10.0.0.8")},
			{Name: "a2", Role: pki.RoleAgent, State: gossip.Dead, Addr: at("10.0.0.9")},
		},
	}
	for ip, want := range map[string][]string{
		"10.0.0.1": {`server "s1"`, "--node-ip", "or remove that member first"},
		"10.0.0.2": {`server "s2"`, "--node-ip", "or remove that member first"},
		"10.0.0.8": {`agent "a1"`, "--node-ip", "if that node is dead",
			"its end is noticed within some minutes: join again then"},
		"10.0.0.9": nil, "10.0.0.7": nil,
	} {
		err := m.AddressTaken("new", netip.MustParseAddr(ip))
		if (err == nil) != (want == nil) {
			t.Errorf("%s: %v", ip, err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q", ip, err, part)
			}
		}
	}
	if err := m.AddressTaken("a1", netip.MustParseAddr("10.0.0.8")); err != nil {
		t.Errorf("its own address: %v", err)
	}
}
