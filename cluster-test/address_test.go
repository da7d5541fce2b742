package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An agent ends with its machine, and another agent gets its address. The first one stays dead: no
// server takes the newcomer for it. Users of other clusters have met nodes that stayed Ready
// (kubernetes/kubernetes#66493, k3s-io/k3s#6335).
func TestAnotherAgentAtADeadOnesAddress(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: a1
  containers: [{name: hello, image: "barque.local/hello:1"}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	s.WaitReady("web")
	Eventually(t, deadline, "the pod is an endpoint", s.endpoints("web", 1))
	address, token := c.address(t, "a1"), strings.TrimSpace(c.Barque(t, "token", "create", "--role=agent"))

	c.Dev(t, "stop", "a1")
	c.Dev(t, "kill", "--machine", "a1")
	c.newcomer(t, "a1", "b1", address, token)
	c.WaitNode(t, "b1", corev1.ConditionTrue, deadline)

	c.WaitNode(t, "a1", corev1.ConditionUnknown, deadline)
	Eventually(t, deadline, "the dead node is tainted", func(ctx context.Context) error {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, "a1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, taint := range n.Spec.Taints {
			if taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute {
				return nil
			}
		}
		return fmt.Errorf("it has the taints %v", n.Spec.Taints)
	})
	Eventually(t, deadline, "its pod is no endpoint", s.endpoints("web", 0))
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  nodeSelector: {kubernetes.io/hostname: a1}
  containers: [{name: hello, image: "barque.local/hello:1"}]
`)
	Eventually(t, deadline, "a pod for the dead node waits", func(context.Context) error {
		for _, condition := range s.Pod("late").Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return errors.New("the scheduler has not said so")
	})
	Eventually(t, deadline, "a status that names the agent", func(ctx context.Context) error {
		if r := c.BarqueResult(ctx, "cluster", "status"); !contains(r.Out, "agent a1 was stopped at",
			"barque kubectl delete node a1") {
			return fmt.Errorf("%s%s", r.Out, r.Err)
		}
		return nil
	})
	if r := s.KResult("logs", "web"); r.Error == nil ||
		!contains(r.Err, `another machine answers at the address of node "a1"`) {
		t.Errorf("the log of a pod of the dead node: %s%s", r.Out, r.Err)
	}
	if late := s.Pod("late"); late.Spec.NodeName != "" {
		t.Errorf("a pod was placed on %s", late.Spec.NodeName)
	}
}

// endpoints checks the number of ready endpoints of a Service.
func (s *Space) endpoints(service string, want int) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := s.Client.DiscoveryV1().EndpointSlices(s.Namespace).List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err != nil {
			return err
		}
		ready := 0
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					ready++
				}
			}
		}
		if ready != want {
			return fmt.Errorf("%d endpoints are ready, want %d", ready, want)
		}
		return nil
	}
}

// newcomer starts an agent with an empty data directory in the network of a node whose own process
// has ended. The agent takes no pods, and ends with the test.
func (c *Cluster) newcomer(t *testing.T, in, name, address, token string) {
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("/tmp", "bq-"+c.ID+"-"+name)
	pidFile := dir + ".pid"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan Result, 1)
	args := []string{"exec", in, "--", "sh", "-c", `echo $$ >"$0"; exec "$@"`, pidFile, path, "agent", "--server",
		"https://" + c.address(t, "s1") + ":6443", "--token", token,
		"--name", name, "--node-ip", address, "--data-dir", dir, "--kubelet-root-dir", dir + "/kubelet", "--node-taint",
		"for=nobody:NoSchedule"}
	go func() { ended <- c.DevResult(ctx, args...) }() // ends with the agent, which the clean-up ends
	t.Cleanup(func() {
		defer cancel()
		if text, err := os.ReadFile(pidFile); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
		}
		r := <-ended
		if t.Failed() {
			t.Logf("the agent %s ended with code %d:\n%.3000s%.3000s", name, r.Code, r.Out, r.Err)
		}
		endAll(t, dir)
		if err := errors.Join(os.RemoveAll(dir), os.Remove(pidFile)); err != nil {
			t.Error(err)
		}
	})
}

// endAll ends the processes with a directory among their arguments.
func endAll(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	for _, file := range found {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte(dir+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
