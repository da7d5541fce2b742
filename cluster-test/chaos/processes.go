package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
)

func processFaults() []fault {
	return []fault{
		{name: "kill the leader", run: killed(theLeader)},
		{name: "kill a follower", run: killed(aFollower)},
		{name: "kill a majority", run: killed(theMajority)},
		{name: "kill all", run: killed(everyone)},
		{name: "kill an agent", run: killed(anAgent)},
		{name: "kill containerd", run: killContainerd},
		{name: "kill a shim", run: killShim},
		{name: "pause the leader", run: paused(theLeader)},
		{name: "pause a follower", run: paused(aFollower)},
		{name: "pause a majority", run: paused(theMajority)},
		{name: "pause an agent", run: paused(anAgent)},
		{name: "lose a machine: agent", run: loseAgent},
		{name: "rolling restart", run: rollingRestart},
	}
}

// startAll starts nodes at the same time: the first may need the others for a quorum.
func (t *trial) startAll(ctx context.Context, nodes []string) error {
	errs := make([]error, len(nodes))
	var starting sync.WaitGroup
	for i, n := range nodes {
		starting.Go(func() { errs[i] = t.Cluster.StartNode(ctx, n) })
	}
	starting.Wait()
	return errors.Join(errs...)
}

// killed is a fault that ends processes at the same moment, and starts them again.
func killed(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		nodes := whom(t)
		t.meet(nodes...)
		if err := t.Cluster.KillNodes(ctx, nodes...); err != nil {
			return err
		}
		t.hold(ctx, 500*time.Millisecond, 3*time.Second)
		return t.startAll(ctx, nodes)
	}
}

// killContainerd kills the one of some node, which must get another one while its pods go on.
func killContainerd(ctx context.Context, t *trial) error {
	node := t.nodes()[t.rnd.IntN(len(t.nodes()))]
	t.meet(node)
	killed, err := t.Cluster.KillContainerd(node)
	if err != nil {
		return err
	}
	return clustertest.Poll(ctx, patience, func(context.Context) error {
		pid, err := t.Cluster.Containerd(node)
		if err == nil && pid == killed {
			err = fmt.Errorf("process %d of %s has not ended yet", pid, node)
		}
		return err
	})
}

// killShim kills the process between containerd and one pod, which must be started again.
func killShim(ctx context.Context, t *trial) error {
	nodes := t.nodes()
	t.rnd.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, n := range nodes {
		before, err := t.containers(ctx, n)
		if err != nil {
			return err
		}
		killed, err := t.Cluster.KillShim(n)
		if err != nil || killed {
			t.meet(n)
			return errors.Join(err, t.awaitRestart(ctx, n, before))
		}
	}
	return errors.New("no node has a shim")
}

// containers returns the containers of a node's pods that are said to run.
func (t *trial) containers(ctx context.Context, node string) (ids []string, err error) {
	list, err := t.Cluster.Client.CoreV1().Pods(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		for _, s := range list.Items[i].Status.ContainerStatuses {
			if s.State.Running != nil {
				ids = append(ids, s.ContainerID)
			}
		}
	}
	return ids, nil
}

// awaitRestart waits until one of a node's containers does not run any more. That its pod runs
// again is seen when all is.
func (t *trial) awaitRestart(ctx context.Context, node string, before []string) error {
	return clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		now, err := t.containers(ctx, node)
		if err == nil && !slices.ContainsFunc(before, func(id string) bool { return !slices.Contains(now, id) }) {
			err = fmt.Errorf("a shim of %s was killed, and all of its containers are said to run", node)
		}
		return err
	})
}

// paused is a fault that stops processes for longer than an election.
func paused(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		nodes := whom(t)
		t.meet(nodes...)
		if err := t.Cluster.Signal(syscall.SIGSTOP, nodes...); err != nil {
			return err
		}
		t.hold(ctx, 3*time.Second, 6*time.Second)
		return t.Cluster.Signal(syscall.SIGCONT, nodes...)
	}
}

// loseAgent takes an agent's machine away with its pods until they are replaced elsewhere, and
// gives it back. When no agent has pods it is away for as long as that would take.
func loseAgent(ctx context.Context, t *trial) error {
	list, err := t.Cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	node, pods := withPods(t.agents, list.Items)
	t.meet(node)
	t.say("%s, pods on it: %d", node, pods)
	if err := t.Cluster.KillMachine(ctx, node); err != nil {
		return err
	}
	if pods > 0 {
		err = t.awaitEvicted(ctx, node)
	} else {
		t.hold(ctx, monitorGrace+toleration*time.Second, monitorGrace+toleration*time.Second)
	}
	if err != nil {
		return err
	}
	t.hold(ctx, 0, toleration*time.Second)
	return t.Cluster.StartNode(ctx, node)
}

// withPods returns the first node that has pods which are not on their way out, and how many; the
// first one when none has.
func withPods(nodes []string, pods []corev1.Pod) (node string, count int) {
	has := make(map[string]int)
	for i := range pods {
		if pods[i].DeletionTimestamp == nil {
			has[pods[i].Spec.NodeName]++
		}
	}
	for _, n := range nodes {
		if has[n] > 0 {
			return n, has[n]
		}
	}
	return nodes[0], 0
}

// awaitEvicted waits until all pods of a node are on their way out.
func (t *trial) awaitEvicted(ctx context.Context, node string) error {
	return clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		list, err := t.Cluster.Client.CoreV1().Pods(namespace).List(ctx,
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp == nil {
				err = errors.Join(err, fmt.Errorf("pod %s was not evicted", list.Items[i].Name))
			}
		}
		return err
	})
}

// rollingRestart stops one server after the other in order, the leader last, and starts it again.
func rollingRestart(ctx context.Context, t *trial) error {
	nodes := append(slices.Clone(t.others), t.leader)
	t.meet(nodes...)
	for _, n := range nodes {
		if r := t.Cluster.DevResult(ctx, "stop", n); r.Error != nil {
			return r.Error
		}
		if err := t.Cluster.StartNode(ctx, n); err != nil {
			return err
		}
		if _, err := t.awaitLeader(ctx); err != nil {
			return err
		}
	}
	t.say("%s", strings.Join(nodes, ", then "))
	return nil
}
