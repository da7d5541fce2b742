package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// views is the part of /barque/v1/gossip that tests look at.
type views struct {
	Views []struct {
		From    string
		Members []struct{ Name, State string }
	}
	Silent        map[string]string
	Disagreements []struct{ About string }
}

// seen checks that all servers, and the agents, see the node in the state.
func (c *Cluster) seen(node, state string) func(context.Context) error {
	return func(ctx context.Context) error {
		r := c.BarqueResult(ctx, "kubectl", "get", "--raw", "/barque/v1/gossip?agents=true")
		v := new(views)
		if err := json.Unmarshal([]byte(r.Out), v); err != nil {
			return errors.Join(r.Error, err)
		}
		want := len(c.nodes)
		if state != "alive" {
			want--
		}
		if len(v.Views) != want || len(v.Silent) != 0 {
			return fmt.Errorf("%d views, want %d; silent: %v", len(v.Views), want, v.Silent)
		}
		for _, view := range v.Views {
			sees := "not at all"
			for _, m := range view.Members {
				if m.Name == node {
					sees = m.State
				}
			}
			if sees != state {
				return fmt.Errorf("%s sees %s %s, want %s", view.From, node, sees, state)
			}
		}
		if len(v.Disagreements) != 0 {
			return fmt.Errorf("views differ: %+v", v.Disagreements)
		}
		return nil
	}
}

// gossipKeys is the part of `barque cluster keys list -o json` that tests look at.
type gossipKeys struct {
	Generation uint64
	Step       string
	Keys       []struct{ ID string }
	Members    []struct {
		Name       string
		State      string
		Generation uint64
	}
}

func (c *Cluster) gossipKeys(ctx context.Context) (*gossipKeys, error) {
	r := c.BarqueResult(ctx, "cluster", "keys", "list", "-o", "json")
	if r.Error != nil {
		return nil, r.Error
	}
	k := new(gossipKeys)
	return k, json.Unmarshal([]byte(r.Out), k)
}

// rotated waits until all nodes but some use one key, another one than before, and returns its ID.
func (c *Cluster) rotated(t *testing.T, before string, except ...string) string {
	t.Helper()
	var now *gossipKeys
	Eventually(t, deadline, "the end of the rotation", func(ctx context.Context) (err error) {
		if now, err = c.gossipKeys(ctx); err != nil {
			return err
		}
		if now.Step != "" || len(now.Keys) != 1 || now.Keys[0].ID == before {
			return fmt.Errorf("%+v", now)
		}
		for _, m := range now.Members {
			if !slices.Contains(except, m.Name) && (m.State != "alive" || m.Generation != now.Generation) {
				return fmt.Errorf("%s is %s, with generation %d of %d", m.Name, m.State, m.Generation, now.Generation)
			}
		}
		return nil
	})
	return now.Keys[0].ID
}

// The procedures of docs/operations.md for the keys of gossip, and how an agent finds its way, with
// real processes.
func TestGossip(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 3, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "all see each other", c.seen("a1", "alive"))
	s.Run("doctor", testNothingWrong)
	s.Run("keys", testKeyRotation)
	s.Run("leave", testLeaveIsNoDeath)
	s.Run("agent", testAgentMoves)
	s.Run("lost", testLostAgent)
}

// testNothingWrong: the doctor has soon nothing to mend in a cluster that has just been made, but
// for how busy the machine is.
func testNothingWrong(s *Space) {
	Eventually(s.TB, deadline, "nothing to mend", func(ctx context.Context) error {
		r := s.BarqueResult(ctx, "cluster", "doctor", "--output=", "--format", "json")
		var found struct {
			Findings []struct{ Text string }
			Silent   map[string]string
		}
		if err := json.Unmarshal([]byte(r.Out), &found); err != nil {
			return errors.Join(err, r.Error)
		}
		busy := 0
		for _, f := range found.Findings {
			if !ofTheMachine.MatchString(f.Text) {
				return fmt.Errorf("code %d, found: %s", r.Code, f.Text)
			}
			busy++
		}
		if len(found.Silent) > 0 || busy == 0 && r.Code != 0 {
			return fmt.Errorf("code %d, silent: %v\n%s", r.Code, found.Silent, r.Err)
		}
		return nil
	})
}

func testKeyRotation(s *Space) {
	t := s.TB.(*testing.T)
	first, err := s.gossipKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.insist(t, "cluster", "keys", "rotate")
	second := s.rotated(t, first.Keys[0].ID)

	// Its leader dies in the middle.
	leader := s.Leader(t)
	s.insist(t, "cluster", "keys", "rotate", "--wait", "0")
	s.Dev(t, "kill", leader)
	third := s.rotated(t, second, leader)
	s.Dev(t, "start", leader)
	if s.rotated(t, second) != third {
		t.Error("the server that comes back brought another key")
	}
	for _, n := range s.Nodes() {
		info, err := os.Stat(filepath.Join(s.DataDir(n), "node.json"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the keys on the disk of %s: %v, %v", n, info.Mode(), err)
		}
	}

	// An agent is away.
	s.Dev(t, "stop", "a1")
	Eventually(t, deadline, "all know that the agent has left", s.seen("a1", "left"))
	if r := s.BarqueResult(t.Context(), "cluster", "keys", "rotate"); r.Code != 4 ||
		!contains(r.Err, "a1 (left)", "--force") {
		t.Errorf("a rotation without the agent: code %d, %s", r.Code, r.Err)
	}
	s.insist(t, "cluster", "keys", "rotate", "--force")
	fourth := s.rotated(t, third, "a1")
	s.Dev(t, "start", "a1")
	if s.rotated(t, third) != fourth {
		t.Error("the agent that comes back brought another key")
	}
	Eventually(t, deadline, "all see each other", s.seen("a1", "alive"))
	if r := s.BarqueResult(t.Context(), "cluster", "keys", "rotate", "--undo"); r.Code != 4 {
		t.Errorf("nothing can be undone: code %d, %s", r.Code, r.Err)
	}
	if r := s.BarqueResult(t.Context(), "cluster", "keys", "rotate", "--undo", "--force"); r.Code != 2 {
		t.Errorf("contradicting arguments: code %d, %s", r.Code, r.Err)
	}
}

// A node that is stopped in order has left, one that is killed is dead, and the pods of neither are
// touched by that.
func testLeaveIsNoDeath(s *Space) {
	t := s.TB.(*testing.T)
	pod := s.podOn("a1", "stays")
	for _, c := range []struct{ how, state string }{{"stop", "left"}, {"kill", "dead"}} {
		s.Dev(t, c.how, "a1")
		Eventually(t, deadline, "the agent is "+c.state, s.seen("a1", c.state))
		s.Dev(t, "start", "a1")
		Eventually(t, deadline, "the agent is alive", s.seen("a1", "alive"))
		s.WaitNode(t, "a1", corev1.ConditionTrue, deadline)
		if now := s.Pod("stays"); now.UID != pod.UID || now.DeletionTimestamp != nil ||
			now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("after the agent's %s the pod is another one, or was restarted: %+v", c.how, now.Status)
		}
	}
}

// An agent that is lost for good is warned of until its Node is deleted, as the status says.
func testLostAgent(s *Space) {
	t := s.TB.(*testing.T)
	s.Dev(t, "kill", "a1")
	Eventually(t, deadline, "a status that tells what to do", func(ctx context.Context) error {
		if r := s.BarqueResult(ctx, "cluster", "status"); !contains(r.Out, "agent a1 shows no life",
			"barque kubectl delete node a1") {
			return fmt.Errorf("%s%s", r.Out, r.Err)
		}
		return nil
	})
	s.K("delete", "node", "a1")
	Eventually(t, deadline, "a status without the agent, on all servers", func(ctx context.Context) error {
		v, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if err := v.wellBut(ofTheMachine); err != nil || len(v.Members) != 3 {
			return fmt.Errorf("%d members: %w", len(v.Members), err)
		}
		r := s.BarqueResult(ctx, "kubectl", "get", "--raw", "/barque/v1/gossip")
		if r.Error != nil || strings.Contains(r.Out, `"a1"`) {
			return fmt.Errorf("%s%s", r.Out, r.Err)
		}
		return nil
	})
}

// podOn runs a pod on the node, without the scheduler, and returns it when it is ready.
func (s *Space) podOn(node, name string) *corev1.Pod {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers: [{name: hello, image: "barque.local/hello:1"}]
`, name, node))
	return s.WaitReady(name)
}

// The server that the agent is connected to goes, in several ways. The agent's watches and writes
// go on by another one. How soon is logged; virtual time shows when connections through a silent
// server are cut: see balancer.TestHowSoonConnectionsMove.
func testAgentMoves(s *Space) {
	t := s.TB.(*testing.T)
	for _, way := range []struct {
		how, back string
		isCut     bool // by the agent; else by the kernel, or by clients whose own probes are not answered
	}{
		{"kill", "start", false},
		{"pause", "resume", false},
		{"partition", "heal", true},
	} {
		usual := s.told(t, way.how+"-before")
		server := s.followerOf(t, "a1")
		recoverCluster(t, s.Cluster, server)
		began := time.Now()
		s.Dev(t, way.how, server)
		gone := time.Now()
		after := s.told(t, way.how+"-after")
		Eventually(t, deadline, "most connections of the agent to another server than "+server,
			func(context.Context) error {
				if now := s.serverOf(t, "a1"); now == server {
					return fmt.Errorf("after %s most lead to %s still", way.how, now)
				}
				return nil
			})
		t.Logf("%s of %s: the agent acted on a new pod after %v; before, after %v", way.how, server,
			after.Round(time.Millisecond), usual.Round(time.Millisecond))
		if way.isCut {
			cut := s.cutAfter(t, "a1", server, began)
			t.Logf("%s of %s: its connections were cut %v after the command began, %v after it ended", way.how, server,
				cut.Sub(began).Round(time.Millisecond), cut.Sub(gone).Round(time.Millisecond))
		}
		if way.how == "partition" {
			s.Dev(t, way.back)
		} else {
			s.Dev(t, way.back, server)
		}
		Eventually(t, deadline, "a whole cluster", s.Healthy)
	}
}

// followerOf is serverOf, when that does not lead: an election is another matter. An agent may go
// to another server at any time, as one does that finds its own late on a busy machine: it is asked
// for again.
func (s *Space) followerOf(t *testing.T, agent string) (server string) {
	t.Helper()
	Eventually(t, deadline, "a server of the agent that does not lead", func(ctx context.Context) error {
		server = s.serverOf(t, agent)
		if s.Leader(t) != server {
			return nil
		}
		return errors.Join(fmt.Errorf("%s leads", server), s.BarqueResult(ctx, "cluster", "transfer-leader").Error)
	})
	return server
}

// cutAfter returns when the agent, by its log, has first cut its connections through the server
// after the moment.
func (s *Space) cutAfter(t *testing.T, agent, server string, after time.Time) (cut time.Time) {
	t.Helper()
	line := regexp.MustCompile(
		`(?m)^time=(\S+) .*msg="connections are cut.* server=` + regexp.QuoteMeta(s.address(t, server)) + `:`)
	Eventually(t, deadline, "the log of "+agent+" to tell that it has left "+server, func(context.Context) error {
		log, err := os.ReadFile(s.LogFile(agent))
		if err != nil {
			return err
		}
		for _, found := range line.FindAllSubmatch(log, -1) {
			if cut, err = time.Parse(time.RFC3339Nano, string(found[1])); err != nil || cut.After(after) {
				return err
			}
		}
		return errors.New("it does not")
	})
	return cut
}

// serverOf returns the server that an agent's connections lead to: all servers have one for probes,
// this one has more.
func (s *Space) serverOf(t *testing.T, agent string) string {
	t.Helper()
	names := map[string]string{} // by address and port, as the kernel writes them
	for _, n := range []string{"s1", "s2", "s3"} {
		a := netip.MustParseAddr(s.address(t, n)).As4()
		names[fmt.Sprintf("%02X%02X%02X%02X:%04X", a[3], a[2], a[1], a[0], 6443)] = n
	}
	const established = "01"
	var server string
	Eventually(t, deadline, "connections of the agent to one server", func(ctx context.Context) error {
		r := s.OnResult(ctx, agent, "cat", "/proc/net/tcp")
		if r.Error != nil {
			return r.Error
		}
		connections := map[string]int{}
		for line := range strings.Lines(r.Out) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == established && names[f[2]] != "" {
				connections[names[f[2]]]++
			}
		}
		most, others := 0, 0
		for n, count := range connections {
			if count > most {
				server, most, others = n, count, most
			} else {
				others = max(others, count)
			}
		}
		if most < 2 || most == others {
			return fmt.Errorf("%v", connections)
		}
		return nil
	})
	return server
}

// told makes a pod for the agent and returns the time until the agent had reported, through the
// API, that it has the pod.
func (s *Space) told(t *testing.T, name string) time.Duration {
	t.Helper()
	began := time.Now()
	grace := int64(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: "a1", TerminationGracePeriodSeconds: &grace,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "hello", Image: "barque.local/hello:1"}}}}
	Eventually(t, deadline, "the pod "+name, func(ctx context.Context) error {
		ctx, cancel := TryOnce(ctx)
		defer cancel()
		_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return exceptExists(err)
	})
	created := time.Now()
	s.WaitPod(name, deadline, "known to the agent", func(p *corev1.Pod) bool { return p.Status.StartTime != nil })
	t.Logf("%s: created after %v", name, created.Sub(began).Round(time.Millisecond))
	return time.Since(began)
}
