package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/verify"
)

// podHistory has the pods by one server's watch, change by change, also while a fault is on. A zero
// one knows nothing yet. One goroutine changes it; any may ask whether it hasAll.
type podHistory struct {
	server string

	mu       sync.Mutex
	pods     map[string]*corev1.Pod // by name, as of revision; nil: none were reported yet
	lost     bool                   // the changes after revision will not come: the watch has to begin anew
	revision uint64
	changes  int
}

// begin takes a list over. It returns the pods that were there before and are not any more, and the
// faults of the list.
func (h *podHistory) begin(list *corev1.PodList) (missing []*corev1.Pod, wrong []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	revision, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		return nil, []string{fmt.Sprintf("a list of pods is at revision %q", list.ResourceVersion)}
	}
	if revision < h.revision {
		wrong = append(wrong, fmt.Sprintf("a list of pods is at revision %d, after %d was told", revision, h.revision))
	}
	before := h.pods
	h.revision, h.pods, h.lost = revision, make(map[string]*corev1.Pod), false
	for i := range list.Items {
		h.pods[list.Items[i].Name] = &list.Items[i]
	}
	for name, pod := range before {
		if now := h.pods[name]; now == nil || now.UID != pod.UID {
			missing = append(missing, pod)
		}
	}
	return missing, append(wrong, h.tooMany()...)
}

// take takes an event over. It returns its faults.
func (h *podHistory) take(kind watch.EventType, pod *corev1.Pod) (wrong []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil || revision < h.revision || revision == h.revision && kind != watch.Bookmark {
		wrong = append(wrong,
			fmt.Sprintf("%s of pod %s at revision %q, after %d was told", kind, pod.Name, pod.ResourceVersion,
				h.revision))
	}
	h.revision = max(h.revision, revision)
	if kind == watch.Bookmark {
		return wrong
	}
	h.changes++
	switch old := h.pods[pod.Name]; {
	case old == nil && kind != watch.Added:
		wrong = append(wrong, fmt.Sprintf("pod %s is %s at revision %d, and was not there", pod.Name, kind, revision))
	case old != nil && (kind == watch.Added || old.UID != pod.UID):
		wrong = append(wrong,
			fmt.Sprintf("two pods %s at revision %d: %s (on %q) is %s, and %s (on %q) is there", pod.Name, revision,
				pod.UID, pod.Spec.NodeName, kind, old.UID, old.Spec.NodeName))
	case old != nil && old.Spec.NodeName != "" && pod.Spec.NodeName != old.Spec.NodeName:
		wrong = append(wrong,
			fmt.Sprintf("pod %s goes from node %s to %q at revision %d", pod.Name, old.Spec.NodeName, pod.Spec.NodeName,
				revision))
	case old != nil && kind == watch.Modified && old.DeletionTimestamp != nil && pod.DeletionTimestamp == nil:
		wrong = append(wrong,
			fmt.Sprintf("pod %s was to be deleted, and is not any more at revision %d", pod.Name, revision))
	}
	if kind == watch.Deleted {
		delete(h.pods, pod.Name)
	} else {
		h.pods[pod.Name] = pod
	}
	return append(wrong, h.tooMany()...)
}

// hasAll is nil when the watch has reported all changes until the list was made: the history has
// these pods, as they are, and no others.
func (h *podHistory) hasAll(list *corev1.PodList) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := maps.Clone(h.pods)
	for i := range list.Items {
		pod := &list.Items[i]
		if has := left[pod.Name]; has == nil || has.UID != pod.UID || has.ResourceVersion != pod.ResourceVersion {
			return fmt.Errorf("the watch of pods on %s has not told of pod %s at revision %s", h.server, pod.Name,
				pod.ResourceVersion)
		}
		delete(left, pod.Name)
	}
	for name := range left {
		return fmt.Errorf("the watch of pods on %s has not told that pod %s is gone", h.server, name)
	}
	return nil
}

// allTold is nil when every server's watch has reported the pods as they are. A watch of a server
// that was away, and that had no end, begins anew after podWatch + podSilent at the latest.
func (r *run) allTold(ctx context.Context) error {
	limited, cancel := clustertest.TryOnce(ctx)
	defer cancel()
	list, err := r.Cluster.Client.CoreV1().Pods(namespace).List(limited, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, h := range r.told {
		if err := h.hasAll(list); err != nil {
			return err
		}
	}
	return nil
}

// tooMany reports that the Deployment has more pods than it declares. It has fewer while some are
// lost, and an ending pod is replaced before it has ended.
func (h *podHistory) tooMany() []string {
	var names []string
	for name, pod := range h.pods {
		if pod.Labels["app"] == web && pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded &&
			pod.Status.Phase != corev1.PodFailed {
			names = append(names, name)
		}
	}
	if len(names) <= replicas {
		return nil
	}
	return []string{
		fmt.Sprintf("%d pods of %s at revision %d, and %d are declared: %q", len(names), web, h.revision, replicas,
			names)}
}

// watchPods follows the pods through a server for as long as the run lasts. The history is the
// server's.
func (r *run) watchPods(ctx context.Context, s verify.Server, h *podHistory) {
	for ; ctx.Err() == nil; schedule.Pause(ctx, 100*time.Millisecond) {
		// A server that is away sends nothing; when it is back it sends the missed changes.
		if h.pods != nil && !h.lost {
			r.followPods(ctx, s, h)
			continue
		}
		limited, cancel := clustertest.TryOnce(ctx)
		list, err := s.Client.CoreV1().Pods(namespace).List(limited, metav1.ListOptions{})
		cancel()
		if err != nil {
			continue
		}
		missing, wrong := h.begin(list)
		r.failWatch(s.Name, wrong)
		for _, pod := range missing {
			r.judge(r.evictions.Missing(pod, time.Now()))
		}
		for _, pod := range h.pods {
			r.sawPod(pod, watch.Added)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.podChanges = append(r.podChanges, h.changes)
}

const (
	// podWatch is for how long one watch lasts, and podSilent how much longer when the server does
	// not end it.
	podWatch  = 10 * time.Second
	podSilent = 5 * time.Second
)

// followPods watches on from where the history is, until the server ends it or says nothing for too
// long. A history that the server's does not reach back to begins anew.
func (r *run) followPods(ctx context.Context, s verify.Server, h *podHistory) {
	limited, cancel := context.WithTimeout(ctx, podWatch+podSilent) // brief: one watch follows the other
	defer cancel()
	seconds := int64(podWatch.Seconds())
	from, err := s.Client.CoreV1().Pods(namespace).Watch(limited, metav1.ListOptions{
		ResourceVersion: strconv.FormatUint(h.revision, 10), AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if err == nil {
		defer from.Stop()
		for e := range from.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				err = apierrors.FromObject(e.Object)
				break
			}
			r.failWatch(s.Name, h.take(e.Type, pod))
			r.sawPod(pod, e.Type)
		}
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		h.lost = true
	}
}

// failWatch fails the run for the faults of a server's watch of pods.
func (r *run) failWatch(server string, wrong []string) {
	for _, text := range wrong {
		r.Fail("the watch of pods on %s: %s", server, text)
	}
}

// sawPod notes the owner of a pod, and judges its end.
func (r *run) sawPod(pod *corev1.Pod, kind watch.EventType) {
	switch kind {
	case watch.Added, watch.Modified:
		r.pods.own(pod)
		r.judge(r.evictions.There(pod, time.Now()))
	case watch.Deleted:
		r.judge(r.evictions.Gone(pod, time.Now()))
	}
}

// judge fails the run for the fault of a pod's end.
func (r *run) judge(wrong string) {
	if wrong != "" {
		r.Fail("%s", wrong)
	}
}
