package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/schedule"
)

// settle waits until the cluster is whole: writes are acknowledged, every server is ready and sees
// all others, every node is Ready and has no taint, every pod is there and the Service answers.
func (r *run) settle(f fault) {
	after, acked := f.name, r.probe.Acknowledged()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := r.whole(ctx)
		if err == nil && !f.alone && r.probe.Acknowledged() == acked {
			err = errors.New("no write was acknowledged since")
		}
		if err == nil {
			return
		}
		var broken *stateError
		if errors.As(err, &broken) && !(f.damages && broken.quarantine) {
			r.Fail("after %s: %v", after, err) // also when it would heal
			return
		}
		for _, n := range r.Cluster.Nodes() {
			if !r.Cluster.Alive(n) {
				r.Fail("after %s: node %s has ended by itself; its log ends with:\n%s", after, n,
					clustertest.Tail(r.Cluster.LogFile(n), 15))
				return
			}
		}
		if ctx.Err() != nil {
			r.Fail("after %s the cluster was not whole within %v: %v", after, patience, err)
			return
		}
		schedule.Pause(ctx, 200*time.Millisecond)
	}
}

func (r *run) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience/3)
	defer cancel()
	for _, s := range r.servers {
		get := s.Client.Discovery().RESTClient().Get
		if err := get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return fmt.Errorf("server %s is not ready: %w", s.Name, err)
		}
		status, err := r.statusOf(ctx, get().AbsPath("/barque/v1/status").DoRaw)
		if err != nil {
			return fmt.Errorf("status from %s: %w", s.Name, err)
		}
		if err := mustNot(status); err != nil {
			return fmt.Errorf("server %s: %w", s.Name, err)
		}
		if err := sees(status); err != nil {
			return fmt.Errorf("server %s: %w", s.Name, err)
		}
	}
	nodes, err := r.Cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if status, reason := clustertest.NodeReady(n); status != corev1.ConditionTrue || len(n.Spec.Taints) > 0 {
			return fmt.Errorf("node %s: Ready is %s (%s), taints %v", n.Name, status, reason, n.Spec.Taints)
		}
	}
	if err := r.pods.whole(ctx); err != nil {
		return err
	}
	return r.pods.answers(ctx)
}

// sees is nil when a server sees all as they should be.
func sees(s *clustertest.Status) error {
	voters := 0
	for _, m := range s.Members {
		switch {
		case m.Gossip != "alive":
			return fmt.Errorf("gossip says that %s is %s", m.Name, m.Gossip)
		case m.Role != "server":
		case m.Store == nil:
			return fmt.Errorf("the store of %s does not answer: %s", m.Name, m.Problem)
		case m.Store.State == "leader" || m.Store.State == "follower":
			voters++
		}
	}
	if voters != servers || len(s.Members) != servers+agents {
		return fmt.Errorf("%d members, %d of them vote", len(s.Members), voters)
	}
	return nil
}

// finish checks, when the clients have ended, that all have the same state, and that nothing is
// left of deleted objects.
func (r *run) finish(ctx context.Context) {
	r.oneState()
	r.wait("every informer has what the store has", r.watchers.converged)
	r.wait("the Deployment has its replicas, and its Service answers on every node", r.whole)
	r.evictions.Stop()
	r.pods.stop()
	if err := r.Cluster.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		r.Fail("remove the namespace: %v", err)
		return
	}
	gone := r.wait("the namespace goes", func(ctx context.Context) error {
		_, err := r.Cluster.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
	if gone {
		r.wait("nothing is left of pods that are gone", func(context.Context) error {
			left, err := r.traces.Remains()
			return errors.Join(err, left.Err())
		})
	}
}
