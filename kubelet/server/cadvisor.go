package server

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// cadvisorMetrics serves what pods use under the names and labels of cAdvisor, which dashboards
// read. The figures are the runtime's; what it does not tell has no metric.
func (s *Server) cadvisorMetrics(w http.ResponseWriter, r *http.Request) {
	summary, err := s.gather(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	pods := map[string]*v1.Pod{}
	for _, pod := range s.Pods.Pods() {
		pods[string(pod.UID)] = pod
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(cadvisor{summary, pods})
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// cadvisor turns a summary into metrics.
type cadvisor struct {
	summary *stats.Summary
	pods    map[string]*v1.Pod // by UID
}

// Describe implements prometheus.Collector. Saying nothing makes the collector unchecked.
func (cadvisor) Describe(chan<- *prometheus.Desc) {}

// cgroupLabels are those of a container; all but pod and namespace are empty for a whole pod.
var cgroupLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// Collect implements prometheus.Collector.
func (c cadvisor) Collect(out chan<- prometheus.Metric) {
	gauge(out, "machine_cpu_cores", "Logical CPUs of the machine.", float64(runtime.NumCPU()), nil)
	if m, err := memory(); err == nil {
		gauge(out, "machine_memory_bytes", "Memory of the machine, in bytes.", float64(m["MemTotal"]), nil)
	}
	for i := range c.summary.Pods {
		p := &c.summary.Pods[i]
		pod := c.pods[p.PodRef.UID]
		use(out, p.CPU, p.Memory, "", "/pod"+p.PodRef.UID, "", "", p.PodRef.Namespace, p.PodRef.Name)
		network(out, p)
		for j := range p.Containers {
			c.container(out, p, &p.Containers[j], pod)
		}
	}
}

func (c cadvisor) container(out chan<- prometheus.Metric, p *stats.PodStats, of *stats.ContainerStats, pod *v1.Pod) {
	status, spec := v1.ContainerStatus{}, v1.Container{}
	if pod != nil {
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				if list[i].Name == of.Name {
					status = list[i]
				}
			}
		}
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if list[i].Name == of.Name {
					spec = list[i]
				}
			}
		}
	}
	id := status.ContainerID
	for i := range id {
		if id[i] == '/' && i > 0 && id[i-1] == '/' {
			id = id[i+1:]
			break
		}
	}
	labels := []string{of.Name, "/pod" + p.PodRef.UID + "/" + id, status.Image, id, p.PodRef.Namespace, p.PodRef.Name}
	use(out, of.CPU, of.Memory, labels...)
	if fs := of.Rootfs; fs != nil && fs.UsedBytes != nil {
		sample(out, "container_fs_usage_bytes", "Bytes of the writable layer.", prometheus.GaugeValue, float64(*fs.UsedBytes), fs.Time.Time, labels...)
	}
	if !of.StartTime.IsZero() {
		sample(out, "container_start_time_seconds", "Start of the container, in seconds since 1970.", prometheus.GaugeValue, float64(of.StartTime.UnixNano())/1e9, time.Time{}, labels...)
	}
	resources := spec.Resources
	if status.Resources != nil {
		resources = *status.Resources
	}
	if q, ok := resources.Limits[v1.ResourceMemory]; ok {
		sample(out, "container_spec_memory_limit_bytes", "Limit of memory, in bytes.", prometheus.GaugeValue, float64(q.Value()), time.Time{}, labels...)
	}
	if q, ok := resources.Limits[v1.ResourceCPU]; ok {
		const period = 100000 // microseconds
		sample(out, "container_spec_cpu_period", "Period of the limit of CPU, in microseconds.", prometheus.GaugeValue, period, time.Time{}, labels...)
		sample(out, "container_spec_cpu_quota", "Limit of CPU, in microseconds of each period.", prometheus.GaugeValue, float64(q.MilliValue())*period/1000, time.Time{}, labels...)
	}
}

// use is what both pods and containers have.
func use(out chan<- prometheus.Metric, cpu *stats.CPUStats, memory *stats.MemoryStats, labels ...string) {
	if cpu != nil && cpu.UsageCoreNanoSeconds != nil {
		desc := prometheus.NewDesc("container_cpu_usage_seconds_total", "CPU time used, in seconds.", append([]string{"cpu"}, cgroupLabels...), nil)
		out <- prometheus.NewMetricWithTimestamp(cpu.Time.Time, prometheus.MustNewConstMetric(desc, prometheus.CounterValue,
			float64(*cpu.UsageCoreNanoSeconds)/1e9, append([]string{"total"}, labels...)...))
	}
	if memory == nil {
		return
	}
	for _, m := range []struct {
		name, help string
		bytes      *uint64
	}{
		{"container_memory_working_set_bytes", "Memory that cannot be taken back, in bytes.", memory.WorkingSetBytes},
		{"container_memory_usage_bytes", "Memory used, page cache included, in bytes.", memory.UsageBytes},
		{"container_memory_rss", "Anonymous memory, in bytes.", memory.RSSBytes},
	} {
		if m.bytes != nil {
			sample(out, m.name, m.help, prometheus.GaugeValue, float64(*m.bytes), memory.Time.Time, labels...)
		}
	}
}

// network is that of a whole pod.
func network(out chan<- prometheus.Metric, p *stats.PodStats) {
	if p.Network == nil {
		return
	}
	n := p.Network
	for _, m := range []struct {
		name, help string
		count      *uint64
	}{
		{"container_network_receive_bytes_total", "Bytes received.", n.RxBytes},
		{"container_network_receive_errors_total", "Errors while receiving.", n.RxErrors},
		{"container_network_transmit_bytes_total", "Bytes sent.", n.TxBytes},
		{"container_network_transmit_errors_total", "Errors while sending.", n.TxErrors},
	} {
		if m.count == nil {
			continue
		}
		desc := prometheus.NewDesc(m.name, m.help, append([]string{"interface"}, cgroupLabels...), nil)
		out <- prometheus.NewMetricWithTimestamp(n.Time.Time, prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(*m.count),
			n.Name, "", "/pod"+p.PodRef.UID, "", "", p.PodRef.Namespace, p.PodRef.Name))
	}
}

func sample(out chan<- prometheus.Metric, name, help string, kind prometheus.ValueType, v float64, at time.Time, labels ...string) {
	m := prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, cgroupLabels, nil), kind, v, labels...)
	if !at.IsZero() {
		m = prometheus.NewMetricWithTimestamp(at, m)
	}
	out <- m
}
