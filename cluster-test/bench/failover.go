package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	clustertest "github.com/barque/barque/cluster-test"
)

const (
	// clientTimeout is how long a client waits for an answer until it goes to the next server.
	clientTimeout = 500 * time.Millisecond
	// objects is how many there are in the cluster, beside its own.
	objects = 300
	// enough is how many writes after the kill show that the gap is over.
	enough = 20
)

// measureFailover kills the leader's process (SIGKILL) again and again. One client writes all the
// time; another begins, at the moment of the kill, to create a Deployment, whose ReplicaSet is the
// first thing that a controller does for it.
func measureFailover(ctx context.Context, kills int) (_ []result, err error) {
	c, _, err := upRepeatedly(ctx, 3, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	f, err := newFailover(ctx, c)
	if err != nil {
		return nil, err
	}
	var gaps, acts, waits []time.Duration
	for i := range kills {
		began := time.Now()
		if err := clustertest.Poll(ctx, time.Minute, c.InStep); err != nil {
			return nil, err
		}
		k, err := f.kill(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("kill %d of %d: %w", i+1, kills, err)
		}
		progress(
			"kill %d of %d, of %s: writes stopped for %v, a controller acted after %v, %v after it could (%v for the round)", i+1, kills, k.leader,
			k.gap.Round(time.Millisecond), k.acted.Round(time.Millisecond), k.waited.Round(time.Millisecond),
			time.Since(began).Round(time.Millisecond))
		gaps, acts, waits = append(gaps, k.gap), append(acts, k.acted), append(waits, k.waited)
	}
	return []result{
		seconds("writes stop when the leader is killed", gaps),
		seconds("from the kill until a controller has acted", acts),
		seconds("from the write until a controller has acted on it", waits),
	}, nil
}

// failover is the state that all kills share.
type failover struct {
	*clustertest.Cluster
	servers        []clustertest.Process
	writer, second *clustertest.FailoverClient
}

func newFailover(ctx context.Context, c *clustertest.Cluster) (f *failover, err error) {
	f = &failover{Cluster: c}
	if f.servers, err = c.Servers(ctx); err != nil {
		return nil, err
	}
	if f.writer, err = c.NewFailoverClient(f.servers, 0, clientTimeout); err != nil {
		return nil, err
	}
	if f.second, err = c.NewFailoverClient(f.servers, 1, clientTimeout); err != nil {
		return nil, err
	}
	progress("%d objects", objects)
	for i := range objects {
		if _, err := c.Client.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%d", i)}},
			metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// killed is the cost of one kill.
type killed struct {
	leader string
	gap    time.Duration // longest time between two acknowledged writes
	acted  time.Duration // from the kill until a controller's write was seen
	waited time.Duration // of that, since the write that it answers was acknowledged
}

func (f *failover) kill(ctx context.Context, round int) (k killed, err error) {
	status, err := f.Status(ctx)
	if err != nil {
		return k, err
	}
	if f.servers, err = f.Servers(ctx); err != nil {
		return k, err
	}
	k.leader = status.Leader
	var victim clustertest.Process
	survivor := 0
	for i, s := range f.servers {
		if s.Name == status.Leader {
			victim, survivor = s, (i+1)%len(f.servers)
		}
	}
	if victim.PID == 0 {
		return k, fmt.Errorf("the leader, %s, has no process", status.Leader)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name := fmt.Sprintf("after-%d", round)
	seen, err := f.awaitReplicaSet(ctx, survivor, name)
	if err != nil {
		return k, err
	}

	var at time.Time
	var writing sync.WaitGroup
	ready, dead := make(chan struct{}), make(chan struct{})
	var writeErr error
	writing.Go(func() { k.gap, writeErr = f.writeAlong(ctx, ready, dead) })
	select {
	case <-ready:
	case <-ctx.Done():
	}
	err = syscall.Kill(victim.PID, syscall.SIGKILL)
	at = time.Now()
	close(dead)
	var acknowledged time.Time
	if err == nil {
		acknowledged, err = f.deploy(ctx, name)
	}
	writing.Wait()
	if err := errors.Join(err, writeErr); err != nil {
		return k, err
	}
	select {
	case done := <-seen:
		if done.IsZero() {
			return k, errors.New("the watch of ReplicaSets has ended")
		}
		k.acted, k.waited = done.Sub(at), max(0, done.Sub(acknowledged))
	case <-ctx.Done():
		return k, errors.New("no controller has acted within a minute")
	}
	if err := f.Client.AppsV1().Deployments("default").Delete(ctx, name,
		metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		return k, err
	}
	return k, f.DevResult(ctx, "start", status.Leader).Error
}

// writeAlong writes all the time, until the gap after dead is over, and returns the longest time
// between two acknowledgements. It closes ready when writes succeed.
func (f *failover) writeAlong(ctx context.Context, ready, dead chan struct{}) (longest time.Duration, err error) {
	patch := func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().ConfigMaps("default").Patch(ctx, "object-0", types.MergePatchType,
			fmt.Appendf(nil, `{"data":{"now":"%d"}}`, time.Now().UnixNano()), metav1.PatchOptions{})
		return err
	}
	var last time.Time
	for before, after := 0, 0; after < enough; {
		if err := f.writer.Kube(ctx, patch); err != nil {
			if ctx.Err() != nil {
				return 0, fmt.Errorf("no write succeeds: %w", err)
			}
			continue
		}
		if !last.IsZero() {
			longest = max(longest, time.Since(last))
		}
		last = time.Now()
		select {
		case <-dead:
			after++
		default:
			if before++; before == enough {
				longest = 0 // until here the connection was made
				close(ready)
			}
		}
		pause(ctx)
	}
	return longest, nil
}

// pause keeps a client from taking the CPU that it measures.
func pause(ctx context.Context) {
	select {
	case <-time.After(5 * time.Millisecond):
	case <-ctx.Done():
	}
}

// deploy creates a Deployment of no pods, and returns when that was acknowledged.
func (f *failover) deploy(ctx context.Context, name string) (time.Time, error) {
	labels := map[string]string{"bench": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "hello", Image: "barque.local/hello:1"}}}},
		},
	}
	for {
		err := f.second.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{})
			return err
		})
		if err == nil || apierrors.IsAlreadyExists(err) { // an earlier try whose answer did not come
			return time.Now(), nil
		}
		if ctx.Err() != nil {
			return time.Time{}, err
		}
	}
}

// awaitReplicaSet watches at one server, and sends the time at which it has seen the ReplicaSet of
// the Deployment.
func (f *failover) awaitReplicaSet(ctx context.Context, server int, deployment string) (<-chan time.Time, error) {
	m, err := f.NewFailoverClient(f.servers[server:server+1], 0, time.Minute)
	if err != nil {
		return nil, err
	}
	events, err := m.Client().AppsV1().ReplicaSets("default").Watch(ctx,
		metav1.ListOptions{LabelSelector: "bench=" + deployment})
	if err != nil {
		return nil, err
	}
	seen := make(chan time.Time, 1)
	go func() { // ends with ctx at the latest, which the caller ends
		defer m.Close()
		defer events.Stop()
		defer close(seen)
		for range events.ResultChan() {
			seen <- time.Now()
			return
		}
	}()
	return seen, nil
}
