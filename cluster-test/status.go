package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
)

// Status is the part of `barque cluster status -o json` that tests look at.
type Status struct {
	ID           string    `json:"id"`
	Leader       string    `json:"leader"`
	Term         uint64    `json:"term"`
	Revision     uint64    `json:"revision"`
	Health       string    `json:"health"` // healthy, degraded or noQuorum
	LeaderSince  time.Time `json:"leaderSince"`
	LeaderReason string    `json:"leaderReason"`
	Warnings     []Warning `json:"warnings"`
	Members      []Member  `json:"members"`
	// Addresses are those for which a node answers that are no machine's own.
	Addresses []struct{ Address, Service, Node string } `json:"addresses"`
}

// Warning is something that needs a person.
type Warning struct {
	Severity string `json:"severity"`
	Node     string `json:"node"`
	Text     string `json:"text"`
	Mend     string `json:"mend"`
}

// Member is one node in it.
type Member struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Address string `json:"address"`
	Version string `json:"version"`
	Gossip  string `json:"gossip"`
	Problem string `json:"problem"`
	Store   *struct {
		State       string   `json:"state"`
		Term        uint64   `json:"term"`
		Applied     uint64   `json:"appliedIndex"`
		Revision    uint64   `json:"revision"`
		Hash        string   `json:"stateHash"`
		Quarantined string   `json:"quarantined"` // why, empty when it is not
		LastContact *float64 `json:"lastContactSeconds"`
		DiskP50     float64  `json:"diskP50Seconds"`
		DiskP99     float64  `json:"diskP99Seconds"`
	} `json:"store"`
	Ways []struct {
		To    string   `json:"to"`
		RTT   *float64 `json:"rttSeconds"`
		Error string   `json:"error"`
	} `json:"ways"`
	Certificates []struct {
		Name     string    `json:"name"`
		NotAfter time.Time `json:"notAfter"`
	} `json:"certificates"`
}

// ofTheMachine are the warnings of the status, and the findings of the doctor, that measure the
// machine, which the tests that run beside this one keep busy.
var ofTheMachine = regexp.MustCompile(
	`^the disk of server \S+ is slow: |^one write in a hundred to the log of server |^the way from server \S+ to \S+ and back takes |` +
		`^server \S+ is \d+ entries behind the leader|MiB of memory are available$|open files are taken$|^the leader changed \d+ times in the last hour: `)

// well is nil when the status says that nothing is wrong with the cluster, but for how busy its
// machine is.
func (c *Cluster) well(ctx context.Context) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	return s.wellBut(ofTheMachine)
}

// wellBut is nil when there is a leader and all warnings have a text that is excused.
func (s *Status) wellBut(excused *regexp.Regexp) error {
	want := "healthy"
	if len(s.Warnings) > 0 {
		want = "degraded"
	}
	grave := slices.DeleteFunc(slices.Clone(s.Warnings), func(w Warning) bool { return excused.MatchString(w.Text) })
	if s.Leader == "" || s.Health != want || len(grave) > 0 {
		return fmt.Errorf("%q leads, the cluster is %s: %+v", s.Leader, s.Health, s.Warnings)
	}
	return nil
}

// Exit codes of `barque cluster status` for a cluster that is not well.
const (
	codeDegraded = 6
	codeNoQuorum = 7
	codeNoAnswer = 8
)

// Status asks the cluster how it is. That it is not well is no error.
func (c *Cluster) Status(ctx context.Context) (*Status, error) {
	r := c.BarqueResult(ctx, "cluster", "status", "-o", "json")
	if r.Error != nil && r.Code != codeDegraded && r.Code != codeNoQuorum {
		return nil, r.Error
	}
	s := new(Status)
	if err := json.Unmarshal([]byte(r.Out), s); err != nil {
		return nil, fmt.Errorf("cluster status: %w\n%s", err, r.Out)
	}
	return s, nil
}

// Leader returns the leader's name.
func (c *Cluster) Leader(t testing.TB) string {
	t.Helper()
	var leader string
	Eventually(t, await.Hang, "a leader", func(ctx context.Context) error {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if leader = s.Leader; leader == "" {
			return errors.New("there is none")
		}
		return nil
	})
	return leader
}

// Healthy is nil when all nodes are Ready and untainted and all servers have the same revision.
func (c *Cluster) Healthy(ctx context.Context) error {
	nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(nodes.Items) != len(c.nodes) {
		return fmt.Errorf("there are %d nodes, want %d", len(nodes.Items), len(c.nodes))
	}
	for _, n := range nodes.Items {
		if status, reason := NodeReady(&n); status != corev1.ConditionTrue {
			return fmt.Errorf("node %s: Ready is %s: %s", n.Name, status, reason)
		}
		if len(n.Spec.Taints) > 0 {
			return fmt.Errorf("node %s has taints: %v", n.Name, n.Spec.Taints)
		}
	}
	return c.InStep(ctx)
}

// InStep is nil when every server answers and is at the same revision with the same state.
func (c *Cluster) InStep(ctx context.Context) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	first := ""
	for _, m := range s.Members {
		if m.Role != "server" {
			continue
		}
		if m.Store == nil {
			return fmt.Errorf("server %s: %s", m.Name, m.Problem)
		}
		state := fmt.Sprint(m.Store.Revision, " ", m.Store.Hash)
		if first == "" {
			first = state
		}
		if state != first {
			return fmt.Errorf("%s is at %s, %s at %s", s.Members[0].Name, first, m.Name, state)
		}
	}
	return nil
}

// NodeReady returns a node's Ready condition.
func NodeReady(n *corev1.Node) (corev1.ConditionStatus, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status, c.Reason + ": " + c.Message
		}
	}
	return corev1.ConditionUnknown, "there is no Ready condition"
}

// WaitNode waits until a node's Ready condition has the status.
func (c *Cluster) WaitNode(t testing.TB, node string, want corev1.ConditionStatus, limit time.Duration) time.Duration {
	t.Helper()
	return Eventually(t, limit, fmt.Sprintf("node %s is Ready=%s", node, want), func(ctx context.Context) error {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status, reason := NodeReady(n); status != want {
			return fmt.Errorf("it is %s: %s", status, reason)
		}
		return nil
	})
}
