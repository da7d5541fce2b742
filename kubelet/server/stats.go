package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/barque/barque/kubelet/cri"
)

// summary serves what the node and its pods use, from the runtime and from /proc.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	summary, err := s.gather(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	s.addVolumes(r.Context(), summary)
	writeJSON(w, summary)
}

// gather reads what is known at once: all but how full volumes are.
func (s *Server) gather(ctx context.Context) (*stats.Summary, error) {
	boxes, err := s.Runtime.ListPodSandboxStats(ctx)
	if err != nil {
		return nil, err
	}
	sum := &stats.Summary{Node: s.nodeStats(), Pods: []stats.PodStats{}}
	for _, box := range boxes {
		if box.GetAttributes().GetMetadata() == nil || box.GetLinux() == nil {
			continue
		}
		sum.Pods = append(sum.Pods, podStats(box))
	}
	slices.SortFunc(sum.Pods, func(a, b stats.PodStats) int {
		return cmp.Or(strings.Compare(a.PodRef.Namespace, b.PodRef.Namespace), strings.Compare(a.PodRef.Name, b.PodRef.Name))
	})
	pods := map[string]*v1.Pod{}
	for _, pod := range s.Pods.Pods() {
		pods[string(pod.UID)] = pod
	}
	for i := range sum.Pods {
		if pod := pods[sum.Pods[i].PodRef.UID]; pod != nil {
			addStarts(&sum.Pods[i], pod)
		}
	}
	return sum, nil
}

// addStarts tells since when a pod and its containers run.
func addStarts(p *stats.PodStats, pod *v1.Pod) {
	if pod.Status.StartTime != nil {
		p.StartTime = *pod.Status.StartTime
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			i := slices.IndexFunc(p.Containers, func(s stats.ContainerStats) bool { return s.Name == c.Name })
			if i >= 0 && c.State.Running != nil {
				p.Containers[i].StartTime = c.State.Running.StartedAt
			}
		}
	}
}

func podStats(box *runtimeapi.PodSandboxStats) stats.PodStats {
	meta := box.Attributes.Metadata
	p := stats.PodStats{
		PodRef:     stats.PodReference{Name: meta.Name, Namespace: meta.Namespace, UID: meta.Uid},
		Containers: []stats.ContainerStats{},
		CPU:        cpuStats(box.Linux.Cpu), Memory: memoryStats(box.Linux.Memory),
	}
	var swapped uint64
	var swaps metav1.Time
	for _, c := range box.Linux.Containers {
		p.Containers = append(p.Containers, stats.ContainerStats{
			Name: c.GetAttributes().GetLabels()[cri.LabelContainerName],
			CPU:  cpuStats(c.Cpu), Memory: memoryStats(c.Memory), Rootfs: layerStats(c.WritableLayer), Swap: swapStats(c.Swap),
		})
		if used := c.Swap.GetSwapUsageBytes(); used != nil {
			swapped, swaps = swapped+used.Value, nanos(c.Swap.Timestamp)
		}
	}
	if !swaps.IsZero() {
		p.Swap = &stats.SwapStats{Time: swaps, SwapUsageBytes: &swapped}
	}
	if n := box.Linux.Network; n != nil && n.DefaultInterface != nil {
		p.Network = &stats.NetworkStats{Time: nanos(n.Timestamp), InterfaceStats: interfaceStats(n.DefaultInterface)}
	}
	if n := box.Linux.Process.GetProcessCount(); n != nil {
		p.ProcessStats = &stats.ProcessStats{ProcessCount: &n.Value}
	}
	return p
}

func interfaceStats(u *runtimeapi.NetworkInterfaceUsage) stats.InterfaceStats {
	return stats.InterfaceStats{
		Name: u.Name, RxBytes: value(u.RxBytes), RxErrors: value(u.RxErrors), TxBytes: value(u.TxBytes), TxErrors: value(u.TxErrors),
	}
}

func cpuStats(u *runtimeapi.CpuUsage) *stats.CPUStats {
	if u == nil {
		return nil
	}
	return &stats.CPUStats{Time: nanos(u.Timestamp), UsageNanoCores: value(u.UsageNanoCores), UsageCoreNanoSeconds: value(u.UsageCoreNanoSeconds)}
}

func memoryStats(u *runtimeapi.MemoryUsage) *stats.MemoryStats {
	if u == nil {
		return nil
	}
	return &stats.MemoryStats{
		Time: nanos(u.Timestamp), AvailableBytes: value(u.AvailableBytes), UsageBytes: value(u.UsageBytes),
		WorkingSetBytes: value(u.WorkingSetBytes), RSSBytes: value(u.RssBytes),
		PageFaults: value(u.PageFaults), MajorPageFaults: value(u.MajorPageFaults),
	}
}

func swapStats(u *runtimeapi.SwapUsage) *stats.SwapStats {
	if u == nil {
		return nil
	}
	return &stats.SwapStats{Time: nanos(u.Timestamp), SwapAvailableBytes: value(u.SwapAvailableBytes), SwapUsageBytes: value(u.SwapUsageBytes)}
}

func layerStats(u *runtimeapi.FilesystemUsage) *stats.FsStats {
	if u == nil {
		return nil
	}
	return &stats.FsStats{Time: nanos(u.Timestamp), UsedBytes: value(u.UsedBytes), InodesUsed: value(u.InodesUsed)}
}

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func nanos(n int64) metav1.Time { return metav1.NewTime(time.Unix(0, n)) }

// nodeStats reads what the whole machine uses. What cannot be read is left out.
func (s *Server) nodeStats() stats.NodeStats {
	now := metav1.NewTime(s.Now())
	n := stats.NodeStats{NodeName: s.NodeName, StartTime: metav1.NewTime(s.started)}
	if busy, ok := busyNanos(); ok {
		n.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &busy}
	}
	if m, err := memory(); err == nil {
		used := m["MemTotal"] - m["MemAvailable"]
		available, swapFree, swapped := m["MemAvailable"], m["SwapFree"], m["SwapTotal"]-m["SwapFree"]
		n.Memory = &stats.MemoryStats{Time: now, AvailableBytes: &available, UsageBytes: &used, WorkingSetBytes: &used}
		n.Swap = &stats.SwapStats{Time: now, SwapAvailableBytes: &swapFree, SwapUsageBytes: &swapped}
	}
	var fs unix.Statfs_t
	if unix.Statfs(s.RootDir, &fs) == nil {
		size := uint64(fs.Bsize)
		total, free, used := fs.Blocks*size, fs.Bavail*size, (fs.Blocks-fs.Bfree)*size
		n.Fs = &stats.FsStats{Time: now, CapacityBytes: &total, AvailableBytes: &free, UsedBytes: &used, Inodes: &fs.Files, InodesFree: &fs.Ffree}
	}
	return n
}

// busyNanos is how long all CPUs have worked since the machine started.
func busyNanos() (uint64, bool) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	// cpu user nice system idle iowait irq softirq steal …, in hundredths of a second
	line, _, _ := strings.Cut(string(raw), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, false
	}
	var ticks uint64
	for i, field := range fields[1:9] {
		if i == 3 || i == 4 {
			continue // idle
		}
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, false
		}
		ticks += n
	}
	return ticks * uint64(10*time.Millisecond), true
}

// memory returns the amounts of memory of the machine in bytes, by the kernel's names.
func memory() (map[string]uint64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	amounts := map[string]uint64{}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		if kib, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
			amounts[name] = kib << 10
		}
	}
	if amounts["MemTotal"] < amounts["MemAvailable"] || amounts["MemTotal"] == 0 || amounts["SwapTotal"] < amounts["SwapFree"] {
		return nil, errors.New("/proc/meminfo has no usable amounts")
	}
	return amounts, nil
}
