// Package status writes the kubelet's findings about pods to the API server.
//
// It owns the pods' status subresource and the last step of a deletion. It sends only differences,
// as patches against the newest status that the API server is known to have. Failures are tried
// again with growing pauses for as long as the pod exists.
package status

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/barque/barque/kubelet/podinfo"
)

// The pauses between tries.
const (
	firstRetry   = 50 * time.Millisecond
	longestRetry = 10 * time.Second
)

// parallel is how many writes are under way at a time. Those of one pod never overlap.
const parallel = 4

// Manager writes statuses to the API server. It is safe for concurrent use.
type Manager struct {
	client kubernetes.Interface
	log    *slog.Logger
	queue  workqueue.TypedRateLimitingInterface[types.UID]

	mu   sync.Mutex
	pods map[types.UID]*entry
}

type entry struct {
	pod    *v1.Pod // the newest that the API server is known to have
	status v1.PodStatus
	finish bool
}

// New returns a manager that writes through client.
func New(client kubernetes.Interface, log *slog.Logger) *Manager {
	return &Manager{
		client: client, log: log, pods: map[types.UID]*entry{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](firstRetry, longestRetry)),
	}
}

// Run writes until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var writers sync.WaitGroup
	for range parallel {
		writers.Go(func() { // ends when the queue is shut down
			for m.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	m.queue.ShutDown()
	writers.Wait()
	return nil
}

// Set makes status the pod's status. It does not wait for the API server.
func (m *Manager) Set(pod *v1.Pod, status v1.PodStatus) {
	m.mu.Lock()
	e := m.entryLocked(pod)
	e.status = status
	m.mu.Unlock()
	m.queue.Add(pod.UID)
}

// Finish deletes the object of a pod of which nothing is left, after its last status is written.
func (m *Manager) Finish(pod *v1.Pod) {
	m.mu.Lock()
	e := m.entryLocked(pod)
	e.finish = true
	m.mu.Unlock()
	m.queue.Add(pod.UID)
}

// Forget drops a pod that the API server no longer has.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	m.queue.Forget(uid)
}

// entryLocked returns the pod's entry, with pod in it unless a newer one is known.
func (m *Manager) entryLocked(pod *v1.Pod) *entry {
	e := m.pods[pod.UID]
	if e == nil {
		e = &entry{pod: pod, status: pod.Status}
		m.pods[pod.UID] = e
		return e
	}
	if pod.ResourceVersion != e.pod.ResourceVersion && !older(pod.ResourceVersion, e.pod.ResourceVersion) {
		e.pod = pod
	}
	return e
}

// older compares resource versions, which Kubernetes defines to be numbers that grow.
func older(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}

func (m *Manager) next(ctx context.Context) bool {
	uid, shutdown := m.queue.Get()
	if shutdown {
		return false
	}
	defer m.queue.Done(uid)
	err := m.write(ctx, uid)
	switch {
	case err == nil:
		m.queue.Forget(uid)
	case ctx.Err() == nil:
		m.log.Warn("cannot write a pod's status; trying again", "uid", uid, "err", err)
		m.queue.AddRateLimited(uid)
	}
	return true
}

func (m *Manager) write(ctx context.Context, uid types.UID) error {
	m.mu.Lock()
	e := m.pods[uid]
	if e == nil {
		m.mu.Unlock()
		return nil
	}
	pod, status, finish := e.pod, e.status, e.finish
	m.mu.Unlock()

	patch, err := difference(pod, &status)
	if err != nil {
		return err
	}
	if patch != nil {
		written, err := m.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
		switch {
		case apierrors.IsNotFound(err), (apierrors.IsConflict(err) || apierrors.IsInvalid(err)) && m.replaced(ctx, pod):
			return nil // it is gone; the informer will report that
		case err != nil:
			return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		m.mu.Lock()
		if !older(written.ResourceVersion, e.pod.ResourceVersion) {
			e.pod = written
		}
		m.mu.Unlock()
	}
	if !finish {
		return nil
	}
	now := int64(0)
	err = m.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// replaced reports whether another pod has the pod's name by now.
func (m *Manager) replaced(ctx context.Context, pod *v1.Pod) bool {
	current, err := m.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || (err == nil && current.UID != pod.UID)
}

// difference returns the patch from the pod's status to status, or nil. It names the pod's UID, so
// that it cannot hit a later pod of the same name. Conditions that the node does not decide stay.
func difference(pod *v1.Pod, status *v1.PodStatus) ([]byte, error) {
	wanted := *status
	wanted.Conditions = merged(pod.Status.Conditions, status.Conditions)
	before, err := json.Marshal(&v1.Pod{Status: pod.Status})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(&v1.Pod{Status: wanted})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare statuses of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		return nil, nil
	}
	fields["metadata"] = map[string]any{"uid": pod.UID}
	return json.Marshal(fields)
}

// merged takes the node's conditions from own and all others from theirs, in the order of theirs. A
// condition of the node that own lacks is dropped.
func merged(theirs, own []v1.PodCondition) []v1.PodCondition {
	var list []v1.PodCondition
	at := map[v1.PodConditionType]int{}
	for _, c := range theirs {
		if podinfo.NodeDecides(c.Type) &&
			!slices.ContainsFunc(own, func(o v1.PodCondition) bool { return o.Type == c.Type }) {
			continue
		}
		at[c.Type] = len(list)
		list = append(list, c)
	}
	for _, c := range own {
		if !podinfo.NodeSays(&c) {
			continue
		}
		if i, ok := at[c.Type]; ok {
			list[i] = c
		} else {
			list = append(list, c)
		}
	}
	return list
}
