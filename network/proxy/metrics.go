package proxy

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/barque/barque/network/nft"
)

// meters are the proxy's metrics, under the names of kube-proxy, so that rules and dashboards find
// them. Each family has its own.
type meters struct {
	duration    prometheus.Histogram
	programming prometheus.Histogram
	last        prometheus.Gauge
	queued      prometheus.Gauge
	services    prometheus.Counter
	endpoints   prometheus.Counter

	mu      sync.Mutex
	changes []time.Time // of endpoints, whose rules are not written yet
	started time.Time
}

func newMeters(family nft.Family, now time.Time) *meters {
	labels := prometheus.Labels{"ip_family": "IPv4"}
	if family == nft.IPv6 {
		labels["ip_family"] = "IPv6"
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(
			prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help, ConstLabels: labels})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(
			prometheus.CounterOpts{Namespace: "kubeproxy", Name: name, Help: help, ConstLabels: labels})
	}
	return &meters{
		duration: prometheus.NewHistogram(
			prometheus.HistogramOpts{Namespace: "kubeproxy", ConstLabels: labels,
				Name:    "sync_proxy_rules_duration_seconds",
				Help:    "Time to bring the rules of services up to date.",
				Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}),
		programming: prometheus.NewHistogram(
			prometheus.HistogramOpts{Namespace: "kubeproxy", ConstLabels: labels,
				Name: "network_programming_duration_seconds",
				Help: "Time from the change of a service or of its pods until the rules are written, by the clocks of two machines.",
				Buckets: append(prometheus.LinearBuckets(0.25, 0.25, 2),
					append(prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 30, 9)...)...)}),
		last: gauge("sync_proxy_rules_last_timestamp_seconds",
			"When the rules of services were brought up to date last, in seconds since 1970."),
		queued: gauge("sync_proxy_rules_last_queued_timestamp_seconds",
			"When a change of the rules of services was noticed last, in seconds since 1970."),
		services:  counter("sync_proxy_rules_service_changes_total", "Changes of services."),
		endpoints: counter("sync_proxy_rules_endpoint_changes_total", "Changes of endpoints of services."),
		started:   now,
	}
}

func (m *meters) all() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.programming, m.last, m.queued, m.services, m.endpoints}
}

// mostChanges bounds how many changes wait to be measured. The kernel may refuse rules for hours.
const mostChanges = 1000

// noted takes note of a change of an object.
func (m *meters) noted(object any, now time.Time) {
	m.queued.Set(float64(now.UnixNano()) / 1e9)
	switch object := object.(type) {
	case *corev1.Service:
		m.services.Inc()
	case *discoveryv1.EndpointSlice:
		m.endpoints.Inc()
		at, err := time.Parse(time.RFC3339Nano, object.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err != nil || at.Before(m.started) {
			return // without the time, or of a change before this process
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.changes) < mostChanges {
			m.changes = append(m.changes, at)
		}
	}
}

// waiting are the changes that the next rules are to have.
func (m *meters) waiting() []time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	changes := m.changes
	m.changes = nil
	return changes
}

// synced takes note of rules that were brought up to date, or of the failure of that.
func (m *meters) synced(began, now time.Time, changes []time.Time, err error) {
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changes = append(changes, m.changes...)
		return
	}
	m.duration.Observe(now.Sub(began).Seconds())
	m.last.Set(float64(now.UnixNano()) / 1e9)
	for _, at := range changes {
		m.programming.Observe(max(now.Sub(at), 0).Seconds())
	}
}
