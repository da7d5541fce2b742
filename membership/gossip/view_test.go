package gossip

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// startPool starts members of the roles, named s1, s2, … and a1, a2, …, that have found each other.
func startPool(t *testing.T, net int, servers, agents int, tune func(*memberlist.Config)) []*node {
	t.Helper()
	ca := newCA(t)
	seed := freeAddr(t, net)
	var nodes []*node
	for i := range servers + agents {
		name, role, addr := fmt.Sprintf("s%d", i+1), "server", seed
		if i >= servers {
			name, role = fmt.Sprintf("a%d", i+1-servers), "agent"
		}
		if i > 0 {
			addr = freeAddr(t, net+i)
		}
		proof := proofOf(t, ca, name, role, time.Now().Add(time.Hour))
		var about func() json.RawMessage
		if role == "agent" {
			about = func() json.RawMessage { return json.RawMessage(`{"of":"` + name + `"}`) }
		}
		nodes = append(nodes,
			startNode(t,
				Config{Name: name, About: about, Advertise: addr, Authority: pki.TrustOf(ca), Tune: tune,
					Proof: func() Proof { return proof },
					Seeds: func() []netip.AddrPort { return []netip.AddrPort{seed} }}))
	}
	for _, n := range nodes {
		n.eventually("all alive", func() bool {
			return !slices.ContainsFunc(nodes, func(other *node) bool { return n.state(other.config.Name) != Alive })
		})
	}
	return nodes
}

func TestHealthSpreads(t *testing.T) {
	nodes := startPool(t, 41, 2, 1, calm)
	agent := nodes[2]
	agent.SetHealth(RuntimeIll | DiskLow)
	for _, n := range nodes {
		n.eventually("a1 is ill", func() bool {
			m, _ := n.Member("a1")
			return slices.Equal(m.Facts.Health.Faults(), []string{"runtime", "disk"})
		})
	}
	before, _ := nodes[0].Member("a1")
	agent.SetHealth(0)
	nodes[0].eventually("a1 is well", func() bool {
		m, _ := nodes[0].Member("a1")
		return m.Facts.Health == 0
	})
	if after, _ := nodes[0].Member("a1"); after.State != Alive || !after.Since.Equal(before.Since) {
		t.Fatalf("its health changed the member's life: %+v, before %+v", after, before)
	}
}

func TestIlls(t *testing.T) {
	for h, want := range map[Health]string{0: "", KubeletIll: "kubelet", NetworkIll | PIDsLow: "network pids",
		MemoryLow | 1<<15: "memory other"} {
		if got := strings.Join(h.Faults(), " "); got != want {
			t.Errorf("%b: %q, want %q", h, got, want)
		}
	}
}

func seenBy(t *testing.T, v View, name string) Seen {
	t.Helper()
	i := slices.IndexFunc(v.Members, func(m Seen) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("%s does not see %s: %+v", v.From, name, v.Members)
	}
	return v.Members[i]
}

func TestMembersTellTheirViews(t *testing.T) {
	nodes := startPool(t, 51, 3, 1, calm)
	views, silent := nodes[0].Views(t.Context(), func(m Member) bool { return m.Role == "server" })
	if len(views) != 3 || views[0].From != "s1" || len(silent) != 0 {
		t.Fatalf("views %+v, silent %v", views, silent)
	}
	for _, v := range views {
		for _, name := range []string{"s1", "s2", "s3", "a1"} {
			if m := seenBy(t, v, name); m.State != Alive || m.Silent {
				t.Errorf("%s sees %+v", v.From, m)
			}
		}
	}
	if m := seenBy(t, views[0], "s2"); m.Heard == nil || m.RTT <= 0 {
		t.Errorf("s1 has pinged s2 and knows no time of it: %+v", m)
	}
	if d := Disagreements(views); len(d) != 0 {
		t.Errorf("disagreements in a pool that is well: %+v", d)
	}
	if views, silent := nodes[3].Views(t.Context(), func(Member) bool { return true }); len(views) != 4 ||
		len(silent) != 0 {
		t.Errorf("an agent got %d views; silent %v", len(views), silent)
	}
}

// A server that died a moment ago is silent at once, while gossip still takes it for alive.
func TestASilentServerShowsBeforeItIsDead(t *testing.T) {
	nodes := startPool(t, 61, 3, 0, func(c *memberlist.Config) {
		calm(c)
		c.ProbeTimeout = 500 * time.Millisecond // the wait here for an answer that never comes
	})
	nodes[2].crash()
	view := nodes[0].View(t.Context())
	if m := seenBy(t, view, "s3"); !m.Silent && m.State == Alive {
		t.Fatalf("s1 sees %+v of a server that is gone", m)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // brief: the test wants the time-out
	defer cancel()
	if _, err := nodes[0].ViewOf(ctx, "s3"); err == nil || !strings.Contains(err.Error(), "s3") {
		t.Fatalf("the view of a dead server: %v", err)
	}
	if _, err := nodes[0].ViewOf(ctx, "s9"); err == nil {
		t.Fatal("the view of nobody")
	}
}

func TestDisagreements(t *testing.T) {
	view := func(from string, members ...Seen) View { return View{From: from, Members: members} }
	alive := func(name string) Seen { return Seen{Name: name, State: Alive} }
	silent := func(name string) Seen { return Seen{Name: name, State: Alive, Silent: true} }
	in := func(name string, s State) Seen { return Seen{Name: name, State: s} }
	for what, c := range map[string]struct {
		views []View
		want  []Disagreement
	}{
		"all agree": {[]View{view("a", alive("a"), alive("b")), view("b", alive("a"), alive("b"))}, nil},
		"all agree on a death": {[]View{view("a", alive("b"), in("c", Dead)), view("b", alive("a"), in("c", Dead))},
			nil},
		"one does not reach it": {[]View{view("a", alive("c")), view("b", silent("c"))},
			[]Disagreement{{"c", []string{"a"}, []string{"b"}}}},
		"one takes it for dead": {[]View{view("b", alive("c")), view("a", in("c", Dead)), view("c", alive("c"))},
			[]Disagreement{{"c", []string{"b"}, []string{"a"}}}},
		"one never heard of it": {[]View{view("a", alive("c")), view("b", alive("a"))},
			[]Disagreement{{"c", []string{"a"}, []string{"b"}}}},
		"one heard it leave":  {[]View{view("a", alive("c")), view("b", in("c", Left))}, nil},
		"only it sees itself": {[]View{view("a", in("c", Dead)), view("c", alive("c"))}, nil},
		"a way that is cut once": {
			[]View{view("a", alive("b"), silent("c")), view("b", alive("a"), alive("c")),
				view("c", alive("b"), silent("a"))},
			[]Disagreement{{"a", []string{"b"}, []string{"c"}}, {"c", []string{"b"}, []string{"a"}}}},
	} {
		if got := Disagreements(c.views); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", what, got, c.want)
		}
	}
}

// Any member may ask another for its report; a member without one does not answer.
func TestMembersTellOfThemselves(t *testing.T) {
	nodes := startPool(t, 71, 1, 1, calm)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	about, err := nodes[0].AboutOf(ctx, "a1")
	if err != nil || string(about) != `{"of":"a1"}` {
		t.Errorf("a1 tells %s, %v", about, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // brief: the test wants the time-out
	defer cancel()
	if about, err := nodes[1].AboutOf(short, "s1"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("s1 tells %s, %v", about, err)
	}
	if _, err := nodes[0].AboutOf(t.Context(), "a9"); err == nil {
		t.Error("nobody tells something")
	}
}
