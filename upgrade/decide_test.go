package upgrade

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/upgrade/part"
	"github.com/barque/barque/upgrade/versions"
)

const (
	before = "v0.1.0"
	after  = "v0.2.0"
)

var began = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// program is the behaviour of the program that a model's nodes get.
type program int

const (
	good    program = iota
	crashes         // it ends at its start
	wedges          // it is never ready
	breaks          // it is ready, and the cluster does not keep its promises
	touches         // it restarts containers
)

// machine is a node of the model.
type machine struct {
	name, role string
	version    string
	prepared   bool
	trial      bool
	down       int // ticks until it is up again
	ready      time.Time
	failed     *versions.Failure
	restarts   int
	alive      bool
}

// model is a cluster whose nodes do orders, and lose some.
type model struct {
	t        *testing.T
	random   *rand.Rand
	now      time.Time
	nodes    []*machine
	leader   string
	program  program
	object   *Object
	verified map[string]bool // by the leader of this term
	losses   float64
}

func newModel(t *testing.T, seed uint64, p program, servers, agents int) *model {
	m := &model{t: t, random: rand.New(rand.NewPCG(seed, 1)), now: began, program: p, leader: "s1", losses: 0.2,
		verified: map[string]bool{},
		object:   New(Spec{Version: after, Checksum: "sum", AgentsAtOnce: 2})}
	for i := range servers {
		m.nodes = append(m.nodes, &machine{name: fmt.Sprintf("s%d", i+1), role: "server", version: before, alive: true})
	}
	for i := range agents {
		m.nodes = append(m.nodes, &machine{name: fmt.Sprintf("a%d", i+1), role: "agent", version: before, alive: true})
	}
	return m
}

func (m *model) node(name string) *machine {
	return m.nodes[slices.IndexFunc(m.nodes, func(n *machine) bool { return n.name == name })]
}

func (n *machine) answer() *part.Answer {
	a := &part.Answer{Name: n.name, Version: n.version, Trial: n.trial, Ready: true, Failed: n.failed}
	if n.prepared {
		a.Prepared, a.Sums = after, "sum"
	}
	return a
}

func (m *model) containers(n *machine) map[string]string {
	return map[string]string{"default/p/c": fmt.Sprintf("id, %d restarts", n.restarts)}
}

// seen is the leader's view, with lost answers.
func (m *model) seen() Seen {
	s := Seen{Leader: m.leader, Release: true, Checksum: "sum", Verified: Passed}
	for _, n := range m.nodes {
		is := NodeSeen{Name: n.name, Role: n.role, Version: n.version, Alive: n.alive, Voter: n.role == "server",
			Containers: m.containers(n)}
		switch {
		case n.down > 0 || m.random.Float64() < m.losses:
			is.Err = "no answer"
		default:
			is.Answer = n.answer()
		}
		if n.role == "server" && n.down > 0 {
			s.Faults = append(s.Faults, n.name+" does not answer")
		}
		s.Nodes = append(s.Nodes, is)
	}
	for _, n := range m.object.Status.Nodes {
		if n.Phase != Checking {
			continue
		}
		if !m.verified[n.Name] {
			s.Verified = Unknown
		} else if m.program == breaks {
			s.Verified, s.Problem = Broken, "a write was lost"
		}
	}
	return s
}

// tick passes a second, and lets the leader make a step, which may be cut short anywhere.
func (m *model) tick() {
	m.now = m.now.Add(time.Second)
	for _, n := range m.nodes {
		m.live(n)
	}
	if m.node(m.leader).down > 0 || m.random.Float64() < 0.03 {
		m.elect()
		return
	}
	plan := Decide(m.object.Spec, m.object.Status, m.seen(), m.now)
	if m.random.Float64() < 0.05 {
		m.elect() // before the write
		return
	}
	m.object.Status = plan.Status
	m.check()
	for _, act := range plan.Acts {
		if m.random.Float64() < m.losses {
			continue
		}
		if m.random.Float64() < 0.05 {
			m.elect() // in the middle of the acts
			return
		}
		m.do(act)
	}
}

func (m *model) elect() {
	m.verified = map[string]bool{}
	for range 20 {
		n := m.nodes[m.random.IntN(len(m.nodes))]
		if n.role == "server" && n.down == 0 {
			m.leader = n.name
			return
		}
	}
}

// live is a node's own second: its start, and the watch over a program on trial.
func (m *model) live(n *machine) {
	back := func(why string) {
		n.version, n.trial, n.failed = before, false, &versions.Failure{Version: after, Why: why, At: m.now}
		n.down = 3
	}
	if n.down > 0 {
		if n.down--; n.down > 0 {
			return
		}
		if !n.trial {
			return
		}
		switch m.program {
		case crashes:
			back("it ended")
		case wedges:
			back("it was not ready in time")
		case touches:
			n.restarts++
		}
		n.ready = m.now
	}
	if n.trial && m.now.Sub(n.ready) > m.object.Spec.confirm() {
		back("it was not confirmed in time")
	}
}

func (m *model) do(act Act) {
	switch act.Do {
	case HandOver:
		if m.node(act.Node).down == 0 {
			m.leader, m.verified = act.Node, map[string]bool{}
		}
		return
	case Verify:
		for _, n := range m.object.Status.Nodes {
			m.verified[n.Name] = m.verified[n.Name] || n.Phase == Checking
		}
		return
	}
	n := m.node(act.Node)
	if n.down > 0 {
		return
	}
	switch act.Do {
	case part.Prepare:
		n.prepared = true
	case part.Try:
		if n.version != after && n.prepared {
			n.version, n.trial, n.failed = after, true, nil
			n.down = 1 + m.random.IntN(5)
			if m.program == wedges {
				n.down = 60
			}
			n.ready = m.now.Add(time.Duration(n.down) * time.Second)
			n.prepared = false
		}
	case part.Confirm:
		if n.version == after {
			n.trial = false
		}
	case part.TakeBack:
		if n.version == after && n.trial {
			n.version, n.trial, n.down = before, false, 1+m.random.IntN(5)
			n.failed = &versions.Failure{Version: after, Why: act.Why, At: m.now}
		}
	}
	m.check()
}

// check holds the invariants.
func (m *model) check() {
	m.t.Helper()
	servers, agents := []string{}, 0
	for _, n := range m.nodes {
		if n.down == 0 && !n.trial {
			continue
		}
		if n.role == "server" {
			servers = append(servers, n.name)
		} else {
			agents++
		}
	}
	if len(servers) > 1 {
		m.t.Fatalf("the servers %v are away or on trial at once: %+v", servers, m.object.Status)
	}
	if agents > m.object.Spec.agents() || agents > 0 && len(servers) > 0 {
		m.t.Fatalf("%d agents and the servers %v are away at once", agents, servers)
	}
}

// run ticks until the attempt has ended, and judges its end.
func (m *model) run() {
	m.t.Helper()
	for range 20000 {
		m.tick()
		if m.object.Status.Phase.Ended() {
			break
		}
	}
	s := &m.object.Status
	if !s.Phase.Ended() {
		m.t.Fatalf("it does not end: %+v", s)
	}
	c := meta.FindStatusCondition(s.Conditions, ConditionComplete)
	mixed := false
	for _, n := range m.nodes {
		if n.trial {
			m.t.Errorf("%s is on trial at the end: %s", n.name, s.Message)
		}
		mixed = mixed || n.version != after
	}
	switch {
	case c == nil:
		m.t.Fatalf("no condition says how it has ended: %+v", s)
	case mixed == (c.Status == metav1.ConditionTrue):
		m.t.Errorf("nodes have other versions: %t, and the condition says %+v", mixed, c)
	case mixed && !strings.Contains(c.Message, before):
		m.t.Errorf("the condition does not name the versions: %s", c.Message)
	}
}

// TestModel: whatever is lost, and whichever leader goes on, at most one server is away by the
// upgrade, and the end is in all nodes, or in a condition.
func TestModel(t *testing.T) {
	for seed := range uint64(60) {
		for _, p := range []program{good, crashes, wedges, breaks, touches} {
			t.Run(fmt.Sprintf("%d/%d", seed, p), func(t *testing.T) {
				m := newModel(t, seed, p, 1+2*int(seed%3), int(seed%4))
				if m.run(); t.Failed() {
					return
				}
				s := &m.object.Status
				if p != good {
					if s.Phase != Failed {
						t.Fatalf("a bad program has ended in %s: %s", s.Phase, s.Message)
					}
					if in := s.Done; in > 0 {
						t.Fatalf("%d nodes kept a bad program", in)
					}
					m.program = good
					m.object.Spec.Attempt++
					m.run()
				}
				// A good program is taken back only if its leaders were lost again and again.
				for range 5 {
					if s.Phase == Complete {
						break
					}
					m.object.Spec.Attempt++
					m.run()
				}
				if s.Phase != Complete {
					t.Errorf("a good program has ended in %s: %s", s.Phase, s.Message)
				}
			})
		}
	}
}

// TestOrder: servers before agents on the way up, the leader last; agents first on the way down.
func TestOrder(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{before, after, "s1 s3 s2 a1 a2 a3"},
		{after, before, "a1 a2 a3 s1 s3 s2"},
		{"v0.2.1", "v0.2.0", "a1 a2 a3 s1 s3 s2"},
		{"v0.1.0-dev.g0bca91a6", "v0.1.0-dev.gffffffff", "s1 s3 s2 a1 a2 a3"},
	} {
		var nodes []NodeSeen
		for _, name := range []string{"s1", "s2", "s3", "a1", "a2", "a3"} {
			role := map[byte]string{'s': "server", 'a': "agent"}[name[0]]
			nodes = append(nodes, NodeSeen{Name: name, Role: role, Version: c.from, Alive: true})
		}
		p := PreviewOf(Spec{Version: c.to, AgentsAtOnce: 2}, nodes, "s2")
		if got := strings.Join(slices.Concat(p.Steps...), " "); got != c.want || p.Refused != "" {
			t.Errorf("from %s to %s: %s, refused %q, want %s", c.from, c.to, got, p.Refused, c.want)
		}
	}
}

// TestSkew: an upgrade that breaks the rules on versions changes nothing.
func TestSkew(t *testing.T) {
	for _, c := range []struct {
		name, server, agent, to, want string
	}{
		{"two lines up", "v0.1.0", "v0.1.0", "v0.3.0", "servers may be one minor version apart"},
		{"two lines down", "v0.3.0", "v0.3.0", "v0.1.0", "servers may be one minor version apart"},
		{"an agent is behind", "v0.2.0", "v0.1.0", "v0.3.0", "an agent may be one minor version behind"},
		{"one line up", "v0.1.0", "v0.1.0", "v0.2.0", ""},
		{"one line down", "v0.2.0", "v0.2.0", "v0.1.0", ""},
		{"an agent follows", "v0.2.0", "v0.1.0", "v0.2.0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := Seen{Leader: "s1", Release: true, Nodes: []NodeSeen{
				{Name: "s1", Role: "server", Version: c.server, Alive: true, Voter: true},
				{Name: "a1", Role: "agent", Version: c.agent, Alive: true}}}
			plan := Decide(Spec{Version: c.to}, Status{}, seen, began)
			if refused := plan.Status.Phase == Failed; refused != (c.want != "") ||
				!strings.Contains(plan.Status.Message, c.want) {
				t.Errorf("phase %s: %s; want %q", plan.Status.Phase, plan.Status.Message, c.want)
			}
			if c.want != "" && len(plan.Acts) > 0 {
				t.Errorf("acts %+v", plan.Acts)
			}
		})
	}
}

// TestPause: with pauseAfter no further node begins, and a change of the order ends the pause.
func TestPause(t *testing.T) {
	m := newModel(t, 1, good, 3, 1)
	m.losses = 0
	m.object.Spec.PauseAfter = new(int)
	*m.object.Spec.PauseAfter = 1
	for range 3000 {
		m.tick()
	}
	if s := m.object.Status; s.Phase != Paused || s.Done != 1 || !m.object.Paused() {
		t.Fatalf("phase %s with %d nodes: %s", s.Phase, s.Done, s.Message)
	}
	m.object.Spec.PauseAfter = nil
	if m.run(); m.object.Status.Phase != Complete {
		t.Errorf("phase %s: %s", m.object.Status.Phase, m.object.Status.Message)
	}
}

// TestGates: each gate holds a node up, and takes it back when its time is over.
func TestGates(t *testing.T) {
	for _, c := range []struct {
		name string
		seen func(*Seen)
		want string
	}{
		{"a voter is away", func(s *Seen) { s.Faults = []string{"s2 does not answer"} }, "s2 does not answer"},
		{"containers restarted", func(s *Seen) { s.Nodes[0].Containers["p"] = "other" }, "containers were not left alone"},
		{"a promise is broken", func(s *Seen) { s.Verified, s.Problem = Broken, "lost" }, "has not kept its promises: lost"},
		{"verification fails", func(s *Seen) { s.Verified, s.Problem = Unknown, "no answer" }, "not passed in time: no answer"},
		{"not ready again", func(s *Seen) { s.Nodes[0].Answer.Ready = false }, "it is not ready"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := Spec{Version: after, Checksum: "sum"}
			status := Status{Phase: Running, Nodes: []NodeStatus{{Name: "s1", Role: "server", Phase: Checking,
				Since: metav1.Time{Time: began}, Containers: map[string]string{"p": "id"}}}}
			seen := Seen{Leader: "s2", Release: true, Checksum: "sum", Verified: Passed, Nodes: []NodeSeen{{Name: "s1",
				Role: "server", Alive: true, Voter: true, Version: after, Containers: map[string]string{"p": "id"},
				Answer: &part.Answer{Version: after, Trial: true, Ready: true}}}}
			c.seen(&seen)
			plan := Decide(spec, status, seen, began.Add(time.Hour/10))
			if n := plan.Status.Nodes[0]; n.Phase != TakingBack || !strings.Contains(n.Message, c.want) {
				t.Errorf("phase %s: %s", n.Phase, n.Message)
			}
			if !slices.ContainsFunc(plan.Acts, func(a Act) bool { return a.Do == part.TakeBack && a.Node == "s1" }) {
				t.Errorf("acts %+v", plan.Acts)
			}
		})
	}
}
