package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/pods"
)

// Cgroups measures a manager of groups.
func (m *Metrics) Cgroups(of pods.CgroupManager) pods.CgroupManager { return cgroups{of, m} }

type cgroups struct {
	pods.CgroupManager
	metrics *Metrics
}

func (c cgroups) measure(kind string, began time.Time) {
	c.metrics.groups.WithLabelValues(kind).Observe(time.Since(began).Seconds())
}

// Ensure implements pods.CgroupManager.
func (c cgroups) Ensure(pod *v1.Pod) error {
	defer c.measure("create", time.Now())
	return c.CgroupManager.Ensure(pod)
}

// Widen implements pods.CgroupManager.
func (c cgroups) Widen(pod *v1.Pod) error {
	defer c.measure("update", time.Now())
	return c.CgroupManager.Widen(pod)
}

// Remove implements pods.CgroupManager.
func (c cgroups) Remove(uid types.UID) error {
	defer c.measure("destroy", time.Now())
	return c.CgroupManager.Remove(uid)
}

// starts are the starts of pods: from the first status until the pod runs. A pod that ran before
// this kubelet has no start here.
type starts struct {
	duration, sli, total prometheus.Histogram

	mu      sync.Mutex
	pending map[types.UID]*pull
}

// pull is the time between the first and the last pull of a pod's images.
type pull struct{ began, ended time.Time }

func newStarts(histogram func(name, help string, buckets []float64) prometheus.HistogramOpts) starts {
	buckets := []float64{.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200,
		1800, 2700, 3600}
	return starts{
		duration: prometheus.NewHistogram(
			histogram("pod_start_duration_seconds", "Time from the kubelet's first sight of a pod until it runs.",
				buckets)),
		sli: prometheus.NewHistogram(
			histogram("pod_start_sli_duration_seconds",
				"Time from the creation of a pod until it runs, without that of pulls.", buckets)),
		total: prometheus.NewHistogram(
			histogram("pod_start_total_duration_seconds", "Time from the creation of a pod until it runs.", buckets)),
		pending: map[types.UID]*pull{},
	}
}

// Status measures starts and counts ends by the statuses of pods.
func (m *Metrics) Status(of pods.StatusWriter) pods.StatusWriter { return statuses{of, m} }

type statuses struct {
	pods.StatusWriter
	metrics *Metrics
}

// Set implements pods.StatusWriter.
func (s statuses) Set(pod *v1.Pod, status v1.PodStatus) {
	s.metrics.starts.seen(pod, status, time.Now())
	s.metrics.terminations.seen(pod, status)
	s.StatusWriter.Set(pod, status)
}

// Forget implements pods.StatusWriter.
func (s statuses) Forget(uid types.UID) {
	s.metrics.starts.forget(uid)
	s.metrics.terminations.forget(uid)
	s.StatusWriter.Forget(uid)
}

func (s *starts) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, uid)
}

func (s *starts) seen(pod *v1.Pod, status v1.PodStatus, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pulled := s.pending[pod.UID]
	switch {
	case status.Phase == v1.PodPending && pulled == nil:
		s.pending[pod.UID] = &pull{}
	case status.Phase == v1.PodPending || pulled == nil:
	default:
		delete(s.pending, pod.UID)
		if status.Phase != v1.PodRunning {
			return // it ended before it was seen to run
		}
		if status.StartTime != nil {
			s.duration.Observe(now.Sub(status.StartTime.Time).Seconds())
		}
		whole := now.Sub(pod.CreationTimestamp.Time)
		s.total.Observe(whole.Seconds())
		s.sli.Observe((whole - pulled.ended.Sub(pulled.began)).Seconds())
	}
}

// Puller measures the pulls of pods that start.
func (m *Metrics) Puller(of pods.Puller) pods.Puller { return puller{of, &m.starts} }

type puller struct {
	pods.Puller
	starts *starts
}

// Ensure implements pods.Puller.
func (p puller) Ensure(
	ctx context.Context, pod *v1.Pod, container *v1.Container, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	began := time.Now()
	ref, err := p.Puller.Ensure(ctx, pod, container, sandbox)
	p.starts.pulled(pod.UID, began, time.Now())
	return ref, err
}

func (s *starts) pulled(uid types.UID, began, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.pending[uid]
	if of == nil {
		return
	}
	if of.began.IsZero() || began.Before(of.began) {
		of.began = began
	}
	of.ended = ended
}
