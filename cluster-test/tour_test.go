package clustertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTour is the end-to-end pass of `make test`: the life of one cluster of three servers, in the
// order in which its users meet it. Each step has a test of its own in `make test-all`, which goes
// further; a step that fails ends the tour, because the next ones stand on it.
func TestTour(t *testing.T) {
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpace(t, Start(t, Options{Servers: 3, NodeArgs: fastTimes, Registry: images}))
	for _, step := range []struct {
		name string
		do   func(*Space)
	}{
		{"hello", tourHello},
		{"rollout", tourRollout},
		{"kill the leader and rejoin", tourKillLeader},
		{"backup and restore", tourBackup},
		{"leave and join", tourLeave},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			step.do(&Space{TB: t, Cluster: s.Cluster, Namespace: s.Namespace})
		})
		if !ok {
			return
		}
	}
}

// tourHello runs the README's first example and asks its Service for an answer.
func tourHello(s *Space) {
	s.K("apply", "-f", examples+"hello.yaml")
	s.K("rollout", "status", "deployment/hello", "--timeout=120s")
	port := s.K("get", "service", "hello", "-o", "jsonpath={.spec.ports[0].nodePort}")
	pods := s.Pods("app=hello")
	if len(pods) != 3 {
		s.Fatalf("there are %d pods of hello, want 3", len(pods))
	}
	for _, p := range pods {
		Eventually(s, deadline, "an answer of "+p.Name+" through the node port", func(ctx context.Context) error {
			return get(ctx, "http://"+p.Status.HostIP+":"+port+"/", "Hello from "+p.Name)
		})
	}
	if out := s.K("logs", pods[0].Name); !strings.Contains(out, "listening on") {
		s.Errorf("the log of %s is %q", pods[0].Name, out)
	}
}

// tourRollout changes the Deployment's template and goes back.
func tourRollout(s *Space) {
	s.K("set", "env", "deployment/hello", "STEP=two")
	s.K("rollout", "status", "deployment/hello", "--timeout=120s")
	s.K("rollout", "undo", "deployment/hello")
	s.K("rollout", "status", "deployment/hello", "--timeout=120s")
	if sets := strings.Fields(s.K("get", "replicasets", "-l", "app=hello", "-o", "name")); len(sets) != 2 {
		s.Errorf("there are %d ReplicaSets of hello, want 2: %v", len(sets), sets)
	}
}

// tourKillLeader kills the leader under a steady writer: nothing acknowledged is lost, work goes
// on, the dead node's pods are replaced, and the server comes back with all that it missed.
func tourKillLeader(s *Space) {
	leader := s.Leader(s)
	w := s.startWriter()
	s.waitWrites(w, 20)
	s.Dev(s, "kill", leader)
	s.Apply(hello("after", 2, leader))
	s.K("rollout", "status", "deployment/after", "--timeout=120s")
	s.waitWrites(w, w.count.Load()+20)
	s.checkWrites(w)
	if now := s.Leader(s); now == leader {
		s.Errorf("%s leads still, though it is dead", now)
	}
	s.WaitNode(s, leader, corev1.ConditionUnknown, deadline)
	Eventually(s, deadline, "the dead node's pods are replaced", func(context.Context) error {
		pods := s.Pods("app=hello")
		if len(pods) != 3 ||
			slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !Ready(&p) || p.Spec.NodeName == leader }) {
			return errors.New(phases(pods))
		}
		return nil
	})
	s.Dev(s, "start", leader)
	s.WaitNode(s, leader, corev1.ConditionTrue, deadline)
	Eventually(s, deadline, "all servers at one revision", s.InStep)
}

// tourBackup changes objects after a backup and takes the running cluster back to it.
func tourBackup(s *Space) {
	s.K("create", "configmap", "kept", "--from-literal=a=before")
	file, key := s.saveBackup(s)
	s.K("delete", "configmap", "kept")
	s.K("create", "configmap", "later", "--from-literal=a=after")
	s.Barque(s, "snapshot", "restore", file, "--key-file", key, "--yes")
	Eventually(s, deadline, "what was deleted is back and what was new is gone", func(ctx context.Context) error {
		configs := s.Client.CoreV1().ConfigMaps(s.Namespace)
		if _, err := configs.Get(ctx, "kept", metav1.GetOptions{}); err != nil {
			return err
		}
		if _, err := configs.Get(ctx, "later", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("later: %v", err)
		}
		return nil
	})
	Eventually(s, deadline, "the cluster is healthy", s.Healthy)
}

// tourLeave takes a server out by its own command, and lets it join again as a new one.
func tourLeave(s *Space) {
	barque, err := Binary()
	if err != nil {
		s.Fatal(err)
	}
	out := s.On(s, "s3", barque, "cluster", "leave", "--data-dir", s.DataDir("s3"), "--kubeconfig",
		s.DataDir("s3")+"/admin.kubeconfig", "--yes")
	if !contains(out, "s3 was taken out") {
		s.Errorf("leave says %q", out)
	}
	Eventually(s, deadline, "s3 stops by itself", func(ctx context.Context) error {
		if state := s.nodeState(ctx, "s3"); state != "dead" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	s.Dev(s, "start", "--wipe", "s3")
	Eventually(s, deadline, "a whole cluster", s.Healthy)
	Eventually(s, deadline, "one that is well", s.well)
	s.K("rollout", "status", "deployment/hello", "--timeout=120s")
}
