package clustertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
)

// The behaviour of the cluster when nodes break. Each test puts the cluster right again.

const deadline = await.Hang

// recoverCluster makes a test leave a whole cluster, whatever it has found.
func recoverCluster(t *testing.T, c *Cluster, nodes ...string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		c.DevResult(ctx, "heal")
		var starting sync.WaitGroup // all at once: each waits for a quorum
		for _, n := range nodes {
			starting.Go(func() {
				c.DevResult(ctx, "resume", n) // it need not be paused
				c.DevResult(ctx, "start", n)  // nor dead
			})
		}
		starting.Wait()
		if err := Poll(ctx, time.Minute, c.Healthy); err != nil {
			t.Errorf("the cluster does not recover: %v", err)
		}
	})
}

// writer creates ConfigMaps one after the other until it is stopped, and keeps the acknowledged
// names, and the longest time without an acknowledgement.
type writer struct {
	acknowledged []string
	count        atomic.Int64 // of these
	longest      time.Duration
	stop         context.CancelFunc
	done         sync.WaitGroup
}

func (s *Space) startWriter() *writer {
	ctx, cancel := context.WithCancel(s.Context())
	w := &writer{stop: cancel}
	w.done.Go(func() {
		last := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("w-%d", i)
			call, cancel := TryOnce(ctx)
			_, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Create(call,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			cancel()
			if err == nil {
				w.acknowledged = append(w.acknowledged, name)
				w.count.Add(1)
				w.longest, last = max(w.longest, time.Since(last)), time.Now()
			}
		}
	})
	s.Cleanup(w.end)
	return w
}

// waitWrites waits until so many writes are acknowledged.
func (s *Space) waitWrites(w *writer, n int64) {
	s.Helper()
	Eventually(s, deadline, "writes", func(context.Context) error {
		if now := w.count.Load(); now < n {
			return fmt.Errorf("%d of %d", now, n)
		}
		return nil
	})
}

func (w *writer) end() {
	w.stop()
	w.done.Wait()
}

// check makes sure that every acknowledged object is there.
func (s *Space) checkWrites(w *writer) {
	s.Helper()
	w.end()
	list, err := s.Client.CoreV1().ConfigMaps(s.Namespace).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	there := map[string]bool{}
	for _, m := range list.Items {
		there[m.Name] = true
	}
	lost := slices.DeleteFunc(slices.Clone(w.acknowledged), func(name string) bool { return there[name] })
	if len(lost) > 0 {
		s.Errorf("of %d acknowledged writes %d are lost: %v", len(w.acknowledged), len(lost), lost)
	}
	s.Logf("%d writes acknowledged, the longest time without one %v", len(w.acknowledged),
		w.longest.Round(time.Millisecond))
}

// The leader's processes are killed: the others elect, kubectl goes on, a new Deployment has its
// pods (how soon is logged), no acknowledged write is lost; the node becomes Unknown by gossip, its
// pods are replaced; started again, it catches up.
func TestKillLeader(t *testing.T) {
	s := newSpace(t)
	s.K("apply", "-f", examples+"hello.yaml")
	s.K("rollout", "status", "deployment/hello", "--timeout=2m")
	leader := s.Leader(t)
	recoverCluster(t, s.Cluster, leader)
	w := s.startWriter()
	s.waitWrites(w, 20)
	s.Dev(t, "kill", leader)
	killed := time.Now()

	s.Apply(hello("after", 3, leader))
	Eventually(t, deadline, "the pods of a new Deployment", func(context.Context) error {
		pods := s.Pods("app=after")
		if len(pods) != 3 || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !Ready(&p) }) {
			return fmt.Errorf("there are %d: %s", len(pods), phases(pods))
		}
		return nil
	})
	t.Logf("3 pods of a new Deployment were ready %v after the leader was killed",
		time.Since(killed).Round(time.Millisecond))
	now := s.Leader(t)
	if now == leader {
		t.Errorf("%s leads still, though it is dead", now)
	}
	s.checkWorkStart()
	s.checkWrites(w)

	s.WaitNode(t, leader, corev1.ConditionUnknown, deadline)
	t.Logf("node %s is Unknown %v after its death", leader, time.Since(killed).Round(time.Millisecond))
	Eventually(t, deadline, "the dead node's pods are replaced", func(context.Context) error {
		pods := s.Pods("app=hello")
		if len(pods) != 3 ||
			slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !Ready(&p) || p.Spec.NodeName == leader }) {
			return errors.New(phases(pods))
		}
		return nil
	})
	s.K("rollout", "status", "deployment/hello", "--timeout=2m")

	s.Dev(t, "start", leader)
	s.WaitNode(t, leader, corev1.ConditionTrue, deadline)
	Eventually(t, deadline, "all servers at one revision", s.InStep)
	Eventually(t, deadline, "the evicted pods are gone", func(context.Context) error {
		list, err := s.Client.CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.DeletionTimestamp != nil {
				return fmt.Errorf("%s is still there", p.Name)
			}
		}
		return nil
	})
}

// hello is a Deployment that does not care on which node it runs, but for one.
func hello(name string, replicas int, notOn string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: NotIn, values: ["%[3]s"]}]}]
      containers: [{name: hello, image: "barque.local/hello:1"}]
      terminationGracePeriodSeconds: 1
`, name, replicas, notOn)
}

func phases(pods []corev1.Pod) string {
	text := ""
	for _, p := range pods {
		text += fmt.Sprintf("%s on %s is %s, ready=%v; ", p.Name, p.Spec.NodeName, p.Status.Phase, Ready(&p))
	}
	return text
}

// staying is a manifest of pods that are not evicted from a node which is away: how long a start
// takes on a machine that others use, too, is another matter.
func staying(manifest string) string {
	const before = "\n      containers:"
	return strings.Replace(manifest, before, `
      tolerations:
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}
        - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute}`+before, 1)
}

// A server is stopped and started under its running pods: no container notices.
func TestRestartUnderPods(t *testing.T) {
	example, err := os.ReadFile(examples + "hello.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := staying(string(example))
	if manifest == string(example) {
		t.Fatalf("the example has no containers:\n%s", example)
	}
	for _, how := range []string{"stop", "kill"} {
		t.Run(how, func(t *testing.T) {
			s := newSpace(t)
			s.Apply(manifest)
			s.K("rollout", "status", "deployment/hello", "--timeout=2m")
			before := s.containers("app=hello")
			node := s.Nodes()[1]
			recoverCluster(t, s.Cluster, node)
			s.Dev(t, how, node)
			// Nothing of it runs, yet its pod serves.
			for _, p := range s.Pods("app=hello") {
				if p.Spec.NodeName == node {
					if r := s.httpFrom(node, "http://"+p.Status.PodIP+":8080"); r.Error != nil {
						t.Errorf("the pod of a stopped node does not answer: %v", r.Error)
					}
				}
			}
			s.Dev(t, "start", node)
			s.WaitNode(t, node, corev1.ConditionTrue, deadline)
			Eventually(t, deadline, "the same containers, ready", func(context.Context) error {
				for _, p := range s.Pods("app=hello") {
					if !Ready(&p) {
						return fmt.Errorf("%s is not ready", p.Name)
					}
				}
				return nil
			})
			if after := s.containers("app=hello"); after != before {
				t.Errorf("before:\n%safter:\n%s", before, after)
			}
		})
	}
}

// containers returns the identity of all containers: id, start, restarts.
func (s *Space) containers(selector string) string {
	text := ""
	for _, p := range s.Pods(selector) {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running == nil {
				s.Fatalf("container %s of %s does not run: %+v", c.Name, p.Name, c.State)
			}
			text += fmt.Sprintf("%s %s %s %s restarts=%d\n", p.Name, p.Status.PodIP, c.ContainerID,
				c.State.Running.StartedAt.UTC().Format(time.RFC3339), c.RestartCount)
		}
	}
	return text
}

// The leader is cut off: the majority elects and writes; the server that is cut off acknowledges
// nothing; after the heal it has the state of the others.
func TestPartition(t *testing.T) {
	s := newSpace(t)
	leader := s.Leader(t)
	recoverCluster(t, s.Cluster, leader)
	w := s.startWriter()
	s.Dev(t, "partition", leader)
	Eventually(t, deadline, "a write on the majority's side", func(ctx context.Context) error {
		ctx, cancel := TryOnce(ctx)
		defer cancel()
		_, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "majority"}}, metav1.CreateOptions{})
		return exceptExists(err)
	})
	if now := s.Leader(t); now == leader {
		t.Errorf("%s leads still, cut off from the others", now)
	}
	// From inside, the old leader's API answers nothing that could be old or lost.
	command, err := kubectlCommand()
	if err != nil {
		t.Fatal(err)
	}
	minority := s.OnResult(t.Context(), leader,
		append(command, "--kubeconfig", s.DataDir(leader)+"/admin.kubeconfig", "create", "configmap", "minority", "-n",
			s.Namespace)...)
	if minority.Code != 1 || !contains(minority.Err, "no leader has been known for") {
		t.Errorf("a write on the minority's side: code %d\n%s%s", minority.Code, minority.Out, minority.Err)
	}
	if out := s.Dev(t, "status"); !contains(out, "a partition is in force") {
		t.Errorf("dev status says\n%s", out)
	}
	s.Dev(t, "heal")
	Eventually(t, deadline, "all servers at one revision", s.InStep)
	s.checkWrites(w)
	if _, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Get(t.Context(), "minority",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what the minority has refused: %v", err)
	}
	Eventually(t, deadline, "a whole cluster", s.Healthy)
}

// A paused leader holds its connections open and says nothing; when it goes on it finds itself
// deposed, and its controllers change nothing.
func TestPauseLeader(t *testing.T) {
	s := newSpace(t)
	leader := s.Leader(t)
	recoverCluster(t, s.Cluster, leader)
	s.Dev(t, "pause", leader)
	Eventually(t, deadline, "a Deployment's pods while the old leader is paused", func(ctx context.Context) error {
		// brief: the next try may reach a server that answers
		if r := s.ApplyResult(hello("meanwhile", 2, leader), "--request-timeout=10s"); r.Error != nil {
			return r.Error
		}
		pods := s.Pods("app=meanwhile")
		if len(pods) != 2 || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !Ready(&p) }) {
			return errors.New(phases(pods))
		}
		return nil
	})
	s.Dev(t, "resume", leader)
	if now := s.Leader(t); now == leader {
		t.Logf("%s leads again", now)
	}
	Eventually(t, deadline, "a whole cluster", s.Healthy)
	s.checkWorkStart()
	if n := len(s.Pods("app=meanwhile")); n != 2 {
		t.Errorf("there are %d pods, want 2", n)
	}
}

// All servers die at once and start again: nothing is lost.
func TestKillAll(t *testing.T) {
	s := newSpace(t)
	recoverCluster(t, s.Cluster, s.Nodes()...)
	w := s.startWriter()
	s.waitWrites(w, 20)
	revision := s.revision(t)
	for _, n := range s.Nodes() {
		s.Dev(t, "kill", n)
	}
	// Two of three are a quorum; `dev start` of the first waits until it serves, so they start
	// together.
	var starting sync.WaitGroup
	for _, n := range s.Nodes() {
		starting.Go(func() {
			err := Poll(t.Context(), deadline, func(ctx context.Context) error { return s.startOnce(ctx, n) })
			if err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	Eventually(t, deadline, "a whole cluster", s.Healthy)
	s.checkWrites(w)
	if now := s.revision(t); now < revision {
		t.Errorf("the revision went from %d back to %d", revision, now)
	}
}

// A lost machine is taken out of the store and replaced by an empty one of the same name.
func TestReplaceServer(t *testing.T) {
	s := newSpace(t)
	recoverCluster(t, s.Cluster, "s3")
	r := s.BarqueResult(t.Context(), "cluster", "remove", "nobody", "--yes")
	if r.Error == nil || !contains(r.Err, "no member") {
		t.Errorf("removing nobody: %v %s", r.Error, r.Err)
	}
	s.Dev(t, "kill", "--machine", "s3")
	s.Dev(t, "kill", "s2")
	// One of two would be left.
	if r := s.BarqueResult(t.Context(), "cluster", "remove", "s3", "--yes"); r.Error == nil {
		t.Error("without a quorum a server was removed")
	}
	s.Dev(t, "start", "s2")
	s.insist(t, "cluster", "remove", "s3", "--yes")
	// A machine that may live keeps its name.
	Eventually(t, deadline, "gossip that calls s3 dead", func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		for _, m := range status.Members {
			if m.Name == "s3" && m.Gossip != "dead" {
				return fmt.Errorf("s3 is %s", m.Gossip)
			}
		}
		return nil
	})
	if err := os.RemoveAll(filepath.Join(s.Dir, "s3")); err != nil {
		t.Fatal(err)
	}
	s.Dev(t, "start", "s3")
	Eventually(t, deadline, "a whole cluster", s.Healthy)
}

// insist runs barque again for as long as that is refused: servers that stay may not have found
// each other yet, or one may not have answered for a moment.
func (c *Cluster) insist(t testing.TB, args ...string) (out string) {
	t.Helper()
	Eventually(t, deadline, "barque "+strings.Join(args, " "), func(ctx context.Context) error {
		r := c.BarqueResult(ctx, args...)
		out = r.Out
		return r.Error
	})
	return out
}

func (s *Space) startOnce(ctx context.Context, node string) error {
	if s.nodeState(ctx, node) == "running" {
		return nil
	}
	return s.DevResult(ctx, "start", node).Error
}
