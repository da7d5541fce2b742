// Package processmetrics has the metrics of a whole process: its build, and its clients' requests.
// Importing it makes client-go count requests.
//
// They are in the registry of the API machinery, which a server serves at /metrics. Collectors are
// for parts with a separate registry.
package processmetrics

import (
	"context"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	componentversion "k8s.io/component-base/version"

	"github.com/barque/barque/internal/version"
)

// The names, labels and buckets are the same in every component of Kubernetes.
var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rest_client_requests_total", Help: "Requests to API servers, by status code, method and host."},
		[]string{"code", "method", "host"})
	durations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rest_client_request_duration_seconds", Help: "Time of requests to API servers, by verb and host.",
		Buckets: []float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60}}, []string{"verb", "host"})
)

var all = []prometheus.Collector{requests, durations, build()}

func init() {
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: result{}, RequestLatency: latency{}})
	for _, c := range all {
		legacyregistry.Registerer().MustRegister(c)
	}
}

type result struct{}

// Increment implements metrics.ResultMetric of client-go.
func (result) Increment(_ context.Context, code, method, host string) {
	requests.WithLabelValues(code, method, host).Inc()
}

type latency struct{}

// Observe implements metrics.LatencyMetric of client-go.
func (latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	durations.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

// build is the build of this process, under the name and labels of every part of Kubernetes.
func build() prometheus.Collector {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version.Kubernetes, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubernetes_build_info", Help: "The build of this process, as labels; always 1.",
		ConstLabels: prometheus.Labels{
			"major": major, "minor": minor, "git_version": version.String(), "git_commit": version.Version,
			"git_tree_state": "",
			"build_date":     componentversion.Get().BuildDate, "go_version": runtime.Version(),
			"compiler": runtime.Compiler,
			"platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
	}, func() float64 { return 1 })
}

// Collectors are the process' metrics.
func Collectors() []prometheus.Collector { return all }
