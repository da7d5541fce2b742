package server

import (
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/usage"
)

// cadvisorMetrics serves the usage of the machine, of pods and of containers under the names and
// labels of cAdvisor, which dashboards read.
func (s *Server) cadvisorMetrics(w http.ResponseWriter, r *http.Request) {
	measured, err := s.measure(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	s.addLayers(r.Context(), measured)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		cadvisor{node: s.nodeStats(), rootDir: s.RootDir, measured: measured, pods: s.podsByUID(),
			devices: map[string]string{}, now: s.Now()})
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// cadvisor turns one measurement into metrics.
type cadvisor struct {
	node     stats.NodeStats
	rootDir  string
	measured []*usage.Pod
	pods     map[types.UID]*v1.Pod
	devices  map[string]string // names by numbers, as found
	now      time.Time
}

// Describe implements prometheus.Collector. Saying nothing makes the collector unchecked.
func (cadvisor) Describe(chan<- *prometheus.Desc) {}

// cgroupLabels are the labels of a container. All but the ID are empty for the machine, which is
// the root of all groups; for a whole pod all but the ID, the pod and the namespace are.
var cgroupLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// subject is a group with the values of cgroupLabels.
type subject struct {
	out    chan<- prometheus.Metric
	labels []string
	at     time.Time
}

// Collect implements prometheus.Collector.
func (c cadvisor) Collect(out chan<- prometheus.Metric) {
	gauge(out, "machine_cpu_cores", "Logical CPUs of the machine.", float64(runtime.NumCPU()), nil)
	if m, err := memory(); err == nil {
		gauge(out, "machine_memory_bytes", "Memory of the machine, in bytes.", float64(m["MemTotal"]), nil)
		gauge(out, "machine_swap_bytes", "Swap of the machine, in bytes.", float64(m["SwapTotal"]), nil)
		c.machine(out, m)
	}
	for _, m := range c.measured {
		if m.At.IsZero() {
			continue
		}
		of := subject{out, []string{"", m.Group, "", "", m.Namespace, m.Name}, m.At}
		c.figures(of, m.Figures)
		for i := range m.Network {
			of.network(&m.Network[i])
		}
		for i := range m.Containers {
			if !m.Containers[i].At.IsZero() {
				c.container(out, m, &m.Containers[i])
			}
		}
	}
}

// machine has the figures of the root group, for which the kernel has no statistics of a group.
func (c cadvisor) machine(out chan<- prometheus.Metric, m map[string]uint64) {
	of := subject{out, []string{"", "/", "", "", "", ""}, c.now}
	if cpu := c.node.CPU; cpu != nil && cpu.UsageCoreNanoSeconds != nil {
		of.counter("container_cpu_usage_seconds_total", "CPU time used, in seconds.",
			float64(*cpu.UsageCoreNanoSeconds)/1e9, "cpu", "total")
	}
	used := m["MemTotal"] - m["MemFree"]
	of.memory(&cgroups.MemoryStats{
		Usage: used, WorkingSet: m["MemTotal"] - m["MemAvailable"], RSS: m["AnonPages"],
		Cache:  m["Cached"] + m["Buffers"],
		Mapped: m["Mapped"], Swap: m["SwapTotal"] - m["SwapFree"],
	})
	if fs := c.node.Fs; fs != nil {
		device := c.device(deviceOf(c.rootDir))
		of.gauge("container_fs_limit_bytes", "Size of the file system, in bytes.", float64(*fs.CapacityBytes), "device",
			device)
		of.gauge("container_fs_usage_bytes", "Bytes used on the file system.", float64(*fs.UsedBytes), "device", device)
		of.gauge("container_fs_inodes_total", "Inodes of the file system.", float64(*fs.Inodes), "device", device)
		of.gauge("container_fs_inodes_free", "Inodes that are free on the file system.", float64(*fs.InodesFree),
			"device", device)
	}
	host, err := usage.Host(c.now)
	if err != nil {
		return
	}
	for i := range host {
		if name := host[i].Name; name != "lo" && !strings.HasPrefix(name, "veth") {
			of.network(&host[i])
		}
	}
}

func (c cadvisor) container(out chan<- prometheus.Metric, m *usage.Pod, measured *usage.Container) {
	status, spec := v1.ContainerStatus{}, v1.Container{}
	if pod := c.pods[m.UID]; pod != nil {
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
			pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				if list[i].Name == measured.Name {
					status = list[i]
				}
			}
		}
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if list[i].Name == measured.Name {
					spec = list[i]
				}
			}
		}
	}
	of := subject{out, []string{measured.Name, measured.Group, status.Image, measured.ID, m.Namespace, m.Name},
		measured.At}
	c.figures(of, measured.Figures)
	if measured.Layer != nil {
		of.at = measured.Layer.At
		of.gauge("container_fs_usage_bytes", "Bytes used on the file system.", float64(measured.Layer.Bytes), "device",
			c.device(deviceOf(c.rootDir)))
		of.at = measured.At
	}
	if status.State.Running != nil {
		of.gauge("container_start_time_seconds", "Start of the container, in seconds since 1970.",
			float64(status.State.Running.StartedAt.UnixNano())/1e9)
	}
	resources := spec.Resources
	if status.Resources != nil {
		resources = *status.Resources
	}
	of.limits(resources)
}

// limits has the allocated resources of a container. Without a limit of memory it is 0; without one
// of CPU time there is no quota.
func (of subject) limits(r v1.ResourceRequirements) {
	cpu, asked := r.Limits[v1.ResourceCPU], r.Requests[v1.ResourceCPU]
	if asked.IsZero() {
		asked = cpu
	}
	of.gauge("container_spec_memory_limit_bytes", "Limit of memory, in bytes; 0 without one.",
		float64(r.Limits.Memory().Value()))
	of.gauge("container_spec_memory_reservation_limit_bytes", "Memory that is set aside, in bytes; always 0.", 0)
	of.gauge("container_spec_memory_swap_limit_bytes", "Limit of swap, in bytes; always 0.", 0)
	of.gauge("container_spec_cpu_period", "Period of the limit of CPU, in microseconds.", cgroups.Period)
	of.gauge("container_spec_cpu_shares", "Weight of the container when CPUs are short.",
		float64(cgroups.Shares(asked.MilliValue())))
	if quota := cgroups.Quota(cpu.MilliValue()); quota > 0 {
		of.gauge("container_spec_cpu_quota", "Limit of CPU, in microseconds of each period.", float64(quota))
	}
}

// figures are the metrics of pods and containers.
func (c cadvisor) figures(of subject, f usage.Figures) {
	if cpu := f.CPU; cpu != nil {
		of.counter("container_cpu_usage_seconds_total", "CPU time used, in seconds.", cpu.Total.Seconds(), "cpu",
			"total")
		of.counter("container_cpu_user_seconds_total", "CPU time used in user mode, in seconds.", cpu.User.Seconds())
		of.counter("container_cpu_system_seconds_total", "CPU time used in the kernel, in seconds.",
			cpu.System.Seconds())
	}
	// As with cAdvisor, a group without a limit has none of these: its periods stay 0.
	if t := f.Throttled; t != nil && t.Periods > 0 {
		of.counter("container_cpu_cfs_periods_total", "Periods of the CPU limit in which the group ran.",
			float64(t.Periods))
		of.counter("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU limit stopped the group.",
			float64(t.Throttled))
		of.counter("container_cpu_cfs_throttled_seconds_total",
			"Time for which the CPU limit stopped the group, in seconds.", t.Time.Seconds())
	}
	if f.Memory != nil {
		of.memory(f.Memory)
		of.counter("container_memory_failcnt", "How often the limit of memory was hit.", float64(f.Memory.Refused))
		of.counter("container_oom_events_total", "Processes killed for want of memory.", float64(f.Memory.Killed))
		for kind, n := range map[string]uint64{"pgfault": f.Memory.Faults, "pgmajfault": f.Memory.Major} {
			of.counter("container_memory_failures_total", "Page faults.", float64(n), "failure_type", kind, "scope",
				"hierarchy")
		}
	}
	if f.Tasks != nil {
		of.gauge("container_threads", "Threads in the group.", float64(*f.Tasks))
	}
	for numbers, io := range f.IO {
		device := c.device(numbers)
		of.counter("container_fs_reads_total", "Reads of the device.", float64(io.Reads), "device", device)
		of.counter("container_fs_writes_total", "Writes to the device.", float64(io.Writes), "device", device)
		of.counter("container_fs_reads_bytes_total", "Bytes read of the device.", float64(io.ReadBytes), "device",
			device)
		of.counter("container_fs_writes_bytes_total", "Bytes written to the device.", float64(io.WrittenBytes),
			"device", device)
	}
	of.gauge("container_last_seen", "When the group was measured, in seconds since 1970.", float64(of.at.Unix()))
}

func (of subject) memory(m *cgroups.MemoryStats) {
	of.gauge("container_memory_usage_bytes", "Memory used, page cache included, in bytes.", float64(m.Usage))
	of.gauge("container_memory_working_set_bytes", "Memory that cannot be taken back, in bytes.", float64(m.WorkingSet))
	of.gauge("container_memory_rss", "Anonymous memory, in bytes.", float64(m.RSS))
	of.gauge("container_memory_cache", "Page cache, in bytes.", float64(m.Cache))
	of.gauge("container_memory_mapped_file", "Mapped pages of files, in bytes.", float64(m.Mapped))
	of.gauge("container_memory_swap", "Swap used, in bytes.", float64(m.Swap))
}

// network has the counts of one interface.
func (of subject) network(n *usage.Interface) {
	of.at = n.At
	for _, way := range []struct {
		name, does string
		usage.Traffic
	}{{"receive", "received", n.Received}, {"transmit", "sent", n.Sent}} {
		prefix := "container_network_" + way.name
		of.counter(prefix+"_bytes_total", "Bytes "+way.does+".", float64(way.Bytes), "interface", n.Name)
		of.counter(prefix+"_packets_total", "Packets "+way.does+".", float64(way.Packets), "interface", n.Name)
		of.counter(prefix+"_packets_dropped_total", "Packets not "+way.does+": dropped.", float64(way.Dropped),
			"interface", n.Name)
		of.counter(prefix+"_errors_total", "Packets not "+way.does+": errors.", float64(way.Errors), "interface",
			n.Name)
	}
}

func (of subject) gauge(name, help string, v float64, more ...string) {
	of.sample(name, help, prometheus.GaugeValue, v, more)
}

func (of subject) counter(name, help string, v float64, more ...string) {
	of.sample(name, help, prometheus.CounterValue, v, more)
}

// sample has the subject's labels, and in more further names and values in turn.
func (of subject) sample(name, help string, kind prometheus.ValueType, v float64, more []string) {
	names, values := cgroupLabels, of.labels
	for i := 0; i+1 < len(more); i += 2 {
		names, values = append(names[:len(names):len(names)], more[i]),
			append(values[:len(values):len(values)], more[i+1])
	}
	m := prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, values...)
	of.out <- prometheus.NewMetricWithTimestamp(of.at, m)
}

// device is the name of a block device, such as /dev/sda; its numbers where it has none.
func (c cadvisor) device(numbers string) string {
	name, ok := c.devices[numbers]
	if !ok {
		name = deviceName(numbers)
		c.devices[numbers] = name
	}
	return name
}

func deviceName(numbers string) string {
	event, err := os.ReadFile("/sys/dev/block/" + numbers + "/uevent")
	if err != nil {
		return numbers
	}
	for line := range strings.Lines(string(event)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return "/dev/" + name
		}
	}
	return numbers
}
