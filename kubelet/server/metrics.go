package server

import (
	"crypto/tls"
	"math"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// newMetrics serves the kubelet's own metrics.
func (s *Server) newMetrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_running_pods", Help: "Pods of this node of which a container runs."},
			func() float64 { pods, _ := s.count(); return pods }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_node_name", Help: "The name of this node, as a label; always 1.",
			ConstLabels: prometheus.Labels{"node": s.NodeName}},
			func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_running_containers", Help: "Containers of this node's pods that run.",
			ConstLabels: prometheus.Labels{"container_state": "running"}},
			func() float64 { _, containers := s.count(); return containers }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_desired_pods", Help: "Pods that are bound to this node."},
			func() float64 { return float64(len(s.Pods.Pods())) }),
	)
	if s.Volumes != nil {
		registry.MustRegister(volumeMetrics{s})
	}
	if s.TLS != nil && s.TLS.GetCertificate != nil {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_certificate_manager_server_ttl_seconds",
			Help: "Time until the certificate of this server ends, in seconds."}, s.serverTTL))
	}
	registry.MustRegister(s.Collectors...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// serverTTL is infinite without a certificate.
func (s *Server) serverTTL() float64 {
	cert, err := s.TLS.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil || cert == nil || cert.Leaf == nil {
		return math.Inf(1)
	}
	return cert.Leaf.NotAfter.Sub(s.Now()).Seconds()
}

func (s *Server) count() (pods, containers float64) {
	for _, pod := range s.Pods.Pods() {
		running := 0
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				if list[i].State.Running != nil {
					running++
				}
			}
		}
		containers += float64(running)
		if running > 0 {
			pods++
		}
	}
	return pods, containers
}

// resourceMetrics serves the usage of the node, its pods and their containers, under the names that
// metrics-server reads.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	measured, err := s.measure(r.Context()) // the machine's own usage is known without the runtime
	registry := prometheus.NewRegistry()
	registry.MustRegister(resources{summary: s.summaryOf(measured), failed: err != nil})
	// Two containers of one name must not hide the rest.
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// resources turns one summary into metrics.
type resources struct {
	summary *stats.Summary
	failed  bool
}

// Describe implements prometheus.Collector. Saying nothing makes the collector unchecked.
func (resources) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (u resources) Collect(out chan<- prometheus.Metric) {
	scrape := 0.0
	if u.failed {
		scrape = 1
	}
	gauge(out, "resource_scrape_error", "1 when the usage could not be read.", scrape, nil)
	perPod, perContainer := []string{"pod", "namespace"}, []string{"container", "pod", "namespace"}
	n := u.summary.Node
	cpu(out, "node", n.CPU, nil)
	memoryUse(out, "node", n.Memory, nil)
	swapUse(out, "node", n.Swap, nil)
	for i := range u.summary.Pods {
		p := &u.summary.Pods[i]
		cpu(out, "pod", p.CPU, perPod, p.PodRef.Name, p.PodRef.Namespace)
		memoryUse(out, "pod", p.Memory, perPod, p.PodRef.Name, p.PodRef.Namespace)
		swapUse(out, "pod", p.Swap, perPod, p.PodRef.Name, p.PodRef.Namespace)
		for j := range p.Containers {
			c := &p.Containers[j]
			cpu(out, "container", c.CPU, perContainer, c.Name, p.PodRef.Name, p.PodRef.Namespace)
			memoryUse(out, "container", c.Memory, perContainer, c.Name, p.PodRef.Name, p.PodRef.Namespace)
			swapUse(out, "container", c.Swap, perContainer, c.Name, p.PodRef.Name, p.PodRef.Namespace)
			if !c.StartTime.IsZero() {
				gauge(out, "container_start_time_seconds", "Start of the container, in seconds since 1970.",
					float64(c.StartTime.UnixNano())/1e9, perContainer, c.Name, p.PodRef.Name, p.PodRef.Namespace)
			}
		}
	}
}

func cpu(out chan<- prometheus.Metric, of string, s *stats.CPUStats, labels []string, values ...string) {
	if s == nil || s.UsageCoreNanoSeconds == nil {
		return
	}
	desc := prometheus.NewDesc(of+"_cpu_usage_seconds_total", "CPU time used, in core seconds.", labels, nil)
	m := prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(*s.UsageCoreNanoSeconds)/1e9, values...)
	out <- prometheus.NewMetricWithTimestamp(s.Time.Time, m)
}

func memoryUse(out chan<- prometheus.Metric, of string, s *stats.MemoryStats, labels []string, values ...string) {
	if s == nil || s.WorkingSetBytes == nil {
		return
	}
	desc := prometheus.NewDesc(of+"_memory_working_set_bytes", "Memory that cannot be taken back, in bytes.", labels,
		nil)
	m := prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(*s.WorkingSetBytes), values...)
	out <- prometheus.NewMetricWithTimestamp(s.Time.Time, m)
}

func swapUse(out chan<- prometheus.Metric, of string, s *stats.SwapStats, labels []string, values ...string) {
	if s == nil || s.SwapUsageBytes == nil {
		return
	}
	desc := prometheus.NewDesc(of+"_swap_usage_bytes", "Swap used, in bytes.", labels, nil)
	m := prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(*s.SwapUsageBytes), values...)
	out <- prometheus.NewMetricWithTimestamp(s.Time.Time, m)
}

func gauge(out chan<- prometheus.Metric, name, help string, value float64, labels []string, values ...string) {
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue, value,
		values...)
}
