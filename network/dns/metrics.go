package dns

import (
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Where an answer came from, in metrics.
const (
	fromCluster   = "cluster"
	fromRules     = "rules"
	fromCache     = "cache"
	fromForwarded = "forwarded"
)

// metrics are exported with those of the kubelet: see docs/dns.md.
type metrics struct {
	queries *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	silent  prometheus.Counter
	loops   prometheus.Gauge
	refused prometheus.Counter
}

func newMetrics() *metrics {
	const namespace, subsystem = "barque", "dns"
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	return &metrics{
		queries: prometheus.NewCounterVec(
			counter("queries_total", "Questions answered, by where the answer came from and its response code."),
			[]string{"from", "rcode"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "query_seconds",
			Help:    "Time to find an answer, by where it came from.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 4, 9), // 50 µs to 3.3 s
		}, []string{"from"}),
		silent:  prometheus.NewCounter(counter("forward_failures_total", "Questions that no other server answered.")),
		refused: prometheus.NewCounter(counter("refused_rules_total", "Versions of the users' rules that were wrong.")),
		loops: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "loop",
			Help: "1 while servers that are asked ask cluster DNS itself.",
		}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.queries, m.seconds, m.silent, m.refused, m.loops}
}

func (m *metrics) answered(found result, took time.Duration) {
	m.queries.WithLabelValues(found.from, dns.RcodeToString[found.rcode]).Inc()
	m.seconds.WithLabelValues(found.from).Observe(took.Seconds())
}

func (m *metrics) loop(is bool) {
	if is {
		m.loops.Set(1)
	} else {
		m.loops.Set(0)
	}
}

// Collectors are the server's metrics.
func (s *Server) Collectors() []prometheus.Collector { return s.metrics.all() }
