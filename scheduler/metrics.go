package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/scheduler/queue"
)

// Results of an attempt to schedule a pod.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// meters are the scheduler's metrics, with the names and buckets of kube-scheduler, so that its
// dashboards and alerts work. They outlive terms.
type meters struct {
	attempts      *prometheus.CounterVec   // by result and profile
	attempt       *prometheus.HistogramVec // by result and profile
	algorithm     prometheus.Histogram
	sli           *prometheus.HistogramVec // by attempts
	podAttempts   prometheus.Histogram
	preemptions   prometheus.Counter
	victims       prometheus.Histogram
	pending       *prometheus.Desc // by queue
	cached        *prometheus.Desc // by type
	unschedulable *prometheus.Desc // by plugin and profile
	current       func() *term     // nil between terms
}

func newMeters(current func() *term) *meters {
	name := func(n string) string { return prometheus.BuildFQName("scheduler", "", n) }
	histogram := func(n, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name(n), Help: help, Buckets: buckets}
	}
	seconds := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &meters{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("schedule_attempts_total"),
			Help: "Attempts to schedule pods, by result: scheduled, unschedulable (no node fits) or error.",
		}, []string{"result", "profile"}),
		attempt: prometheus.NewHistogramVec(histogram("scheduling_attempt_duration_seconds",
			"Time of an attempt: from the queue to the binding, or to the reason against it.", seconds),
			[]string{"result", "profile"}),
		algorithm: prometheus.NewHistogram(histogram("scheduling_algorithm_duration_seconds",
			"Time to choose a node.", seconds)),
		sli: prometheus.NewHistogramVec(histogram("pod_scheduling_sli_duration_seconds",
			"Time from a pod's first entry into the queue to its binding, by how many attempts it took.",
			prometheus.ExponentialBuckets(0.01, 2, 20)), []string{"attempts"}),
		podAttempts: prometheus.NewHistogram(histogram("pod_scheduling_attempts",
			"Attempts that it took to schedule a pod.", prometheus.ExponentialBuckets(1, 2, 5))),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("preemption_attempts_total"), Help: "Attempts to make room for a pod.",
		}),
		victims: prometheus.NewHistogram(histogram("preemption_victims",
			"Pods that were evicted to make room for one.", prometheus.ExponentialBuckets(1, 2, 7))),
		pending: prometheus.NewDesc(name("pending_pods"),
			"Pods that wait, by queue: active (to be tried), backoff, unschedulable or gated.", []string{"queue"}, nil),
		cached: prometheus.NewDesc(name("cache_size"),
			"Nodes, pods and assumed pods in the scheduler's cache.", []string{"type"}, nil),
		unschedulable: prometheus.NewDesc(name("unschedulable_pods"),
			"Unschedulable pods, by the plugin that rejected them: a pod counts for each.",
			[]string{"plugin", "profile"}, nil),
		current: current,
	}
}

func (m *meters) register(r prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.attempts, m.attempt, m.algorithm, m.sli, m.podAttempts, m.preemptions,
		m.victims, m} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("register the scheduler's metrics: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector for the metrics that are counted at collection.
func (m *meters) Describe(out chan<- *prometheus.Desc) {
	out <- m.pending
	out <- m.cached
	out <- m.unschedulable
}

// Collect implements prometheus.Collector. A server that does not lead shows zeroes.
func (m *meters) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	var waiting queue.Summary
	var nodes, pods, assumed int
	if t := m.current(); t != nil {
		waiting = t.queue.Summary()
		nodes, pods, assumed = t.cache.Len()
	}
	gauge(m.pending, waiting.Active, "active")
	gauge(m.pending, waiting.Backoff, "backoff")
	gauge(m.pending, waiting.Unschedulable, "unschedulable")
	gauge(m.pending, waiting.Gated, "gated")
	gauge(m.cached, nodes, "nodes")
	gauge(m.cached, pods, "pods")
	gauge(m.cached, assumed, "assumed_pods")
	for by, n := range waiting.RejectedBy {
		gauge(m.unschedulable, n, by.Plugin, by.SchedulerName)
	}
}

// tried notes the outcome of an attempt.
func (m *meters) tried(result, profile string, took time.Duration) {
	m.attempts.WithLabelValues(result, profile).Inc()
	m.attempt.WithLabelValues(result, profile).Observe(took.Seconds())
}

// scheduled counts a scheduled pod.
func (m *meters) scheduled(p *queue.Pod, profile string, took, waited time.Duration) {
	m.tried(resultScheduled, profile, took)
	m.podAttempts.Observe(float64(p.Attempts))
	attempts := strconv.Itoa(p.Attempts)
	if p.Attempts >= 15 {
		attempts = "15+"
	}
	m.sli.WithLabelValues(attempts).Observe(waited.Seconds())
}
