package probes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// metrics count the results of probes, under the names that every kubelet serves at
// /metrics/probes. They go with their pod.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics() metrics {
	return metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total", Help: "Probes of containers by their result."},
			[]string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Help: "How long probes of containers took, in seconds."},
			[]string{"probe_type", "container", "pod", "namespace"}),
	}
}

// note counts one probe.
func (m metrics) note(pod *v1.Pod, container, kind string, failed bool, took time.Duration) {
	result := "successful"
	if failed {
		result = "failed"
	}
	m.total.WithLabelValues(kind, result, container, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	m.duration.WithLabelValues(kind, container, pod.Name, pod.Namespace).Observe(took.Seconds())
}

// forget drops the counts of a container.
func (m metrics) forget(uid types.UID, pod, namespace, container string) {
	m.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(uid), "container": container})
	m.duration.DeletePartialMatch(prometheus.Labels{"pod": pod, "namespace": namespace, "container": container})
}

// Describe implements prometheus.Collector.
func (m *Manager) Describe(out chan<- *prometheus.Desc) {
	m.metrics.total.Describe(out)
	m.metrics.duration.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Manager) Collect(out chan<- prometheus.Metric) {
	m.metrics.total.Collect(out)
	m.metrics.duration.Collect(out)
}
