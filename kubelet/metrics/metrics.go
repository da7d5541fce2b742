// Package metrics has the metrics of the kubelet's own work, under upstream's names, so that rules
// and dashboards find them.
//
// The other packages count nothing themselves: calls of the runtime pass an interceptor of this
// package, and the interfaces of the pods' workers have wrappers here.
package metrics

import (
	"context"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Metrics are the kubelet's. They are safe for concurrent use.
type Metrics struct {
	calls    *prometheus.CounterVec
	failures *prometheus.CounterVec
	duration *prometheus.HistogramVec

	startedPods, startedContainers prometheus.Counter
	evictions                      *prometheus.CounterVec

	relist, relistInterval prometheus.Histogram
	relisted               prometheus.Gauge
	relistAt               time.Time // Relisted's only

	steps  *prometheus.HistogramVec
	groups *prometheus.HistogramVec

	starts
	terminations
}

// New returns metrics without values.
func New() *Metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "kubelet", Name: name, Help: help}
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "kubelet", Name: name, Help: help, Buckets: buckets}
	}
	return &Metrics{
		calls: prometheus.NewCounterVec(
			counter("runtime_operations_total", "Calls of the container runtime, by kind."),
			[]string{"operation_type"}),
		failures: prometheus.NewCounterVec(
			counter("runtime_operations_errors_total", "Calls of the container runtime that failed, by kind."),
			[]string{"operation_type"}),
		duration: prometheus.NewHistogramVec(
			histogram("runtime_operations_duration_seconds", "Time of calls of the container runtime, by kind.",
				prometheus.ExponentialBuckets(.005, 2.5, 14)), []string{"operation_type"}),
		startedPods: prometheus.NewCounter(
			counter("started_pods_total", "Sandboxes of pods that were asked for.")),
		startedContainers: prometheus.NewCounter(
			counter("started_containers_total", "Containers whose start was asked for.")),
		evictions: prometheus.NewCounterVec(
			counter("evictions", "Pods that were evicted for lack of a resource, by the signal of it."),
			[]string{"eviction_signal"}),
		relist: prometheus.NewHistogram(
			histogram("pleg_relist_duration_seconds", "Time of a look at all pods of the container runtime.",
				prometheus.DefBuckets)),
		relistInterval: prometheus.NewHistogram(
			histogram("pleg_relist_interval_seconds", "Time between two looks at all pods of the container runtime.",
				prometheus.DefBuckets)),
		relisted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds",
			Help: "When all pods of the container runtime were looked at last, in seconds since 1970."}),
		steps: prometheus.NewHistogramVec(
			histogram("pod_worker_duration_seconds", "Time of one step of a pod: sync, or terminating.",
				prometheus.DefBuckets), []string{"operation_type"}),
		groups: prometheus.NewHistogramVec(
			histogram("cgroup_manager_duration_seconds",
				"Time to create, update or destroy the control groups of a pod.",
				prometheus.DefBuckets), []string{"operation_type"}),
		starts:       newStarts(histogram),
		terminations: newTerminations(counter),
	}
}

// Collectors returns all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.failures, m.duration, m.startedPods, m.startedContainers, m.evictions,
		m.relist, m.relistInterval, m.relisted,
		m.steps, m.groups, m.starts.duration, m.starts.sli, m.starts.total, m.terminations.total}
}

// Interceptor measures the calls of the container runtime.
func (m *Metrics) Interceptor() grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		kind := operation(method)
		switch kind {
		case "run_podsandbox":
			m.startedPods.Inc()
		case "start_container":
			m.startedContainers.Inc()
		}
		began := time.Now()
		err := call(ctx, method, req, reply, conn, opts...)
		m.calls.WithLabelValues(kind).Inc()
		m.duration.WithLabelValues(kind).Observe(time.Since(began).Seconds())
		if err != nil {
			m.failures.WithLabelValues(kind).Inc()
		}
		return err
	}
}

// Watches starts the count of a signal's evictions at 0: a rate does not see a first eviction that
// begins its series.
func (m *Metrics) Watches(signal string) { m.evictions.WithLabelValues(signal) }

// Evicted counts the eviction of a pod.
func (m *Metrics) Evicted(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// operation returns upstream's name of a call, such as
// run_podsandbox for /runtime.v1.RuntimeService/RunPodSandbox.
func operation(method string) string {
	var name strings.Builder
	for i, letter := range strings.ReplaceAll(path.Base(method), "PodSandbox", "Podsandbox") {
		if i > 0 && unicode.IsUpper(letter) {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToLower(letter))
	}
	if name.String() == "update_container_resources" {
		return "update_container"
	}
	return name.String()
}

// Relisted measures a look at all pods. Looks follow each other.
func (m *Metrics) Relisted(began, ended time.Time) {
	m.relist.Observe(ended.Sub(began).Seconds())
	if !m.relistAt.IsZero() {
		m.relistInterval.Observe(began.Sub(m.relistAt).Seconds())
	}
	m.relistAt = began
	m.relisted.Set(float64(ended.UnixNano()) / 1e9)
}

// Stepped measures one step of a pod.
func (m *Metrics) Stepped(ending bool, took time.Duration) {
	kind := "sync"
	if ending {
		kind = "terminating"
	}
	m.steps.WithLabelValues(kind).Observe(took.Seconds())
}
