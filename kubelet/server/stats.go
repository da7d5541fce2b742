package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/barque/barque/kubelet/usage"
)

// Usage measures pods; see package usage.
type Usage interface {
	Pods(ctx context.Context) ([]*usage.Pod, error)
	AddLayers(ctx context.Context, pods []*usage.Pod, allowed time.Duration) error
}

// summary serves the usage of the node and of its pods.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	measured, err := s.measure(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	s.addLayers(r.Context(), measured)
	summary := s.summaryOf(measured)
	s.addVolumes(r.Context(), summary)
	writeJSON(w, summary)
}

// measure measures all pods, without the sizes of layers and volumes. When one group cannot be
// read, the figures of the others count.
func (s *Server) measure(ctx context.Context) ([]*usage.Pod, error) {
	measured, err := s.Usage.Pods(ctx)
	if err != nil && len(measured) > 0 && ctx.Err() == nil {
		s.Logger.Warn("cannot measure all pods", "err", err)
		err = nil
	}
	slices.SortFunc(measured, func(a, b *usage.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return measured, err
}

// layersAge is the oldest size of a writable layer; layersPatience bounds the wait for a newer one.
const (
	layersAge      = time.Minute
	layersPatience = time.Second
)

// addLayers adds the sizes of writable layers. Without an answer in time they are the earlier ones.
func (s *Server) addLayers(ctx context.Context, measured []*usage.Pod) {
	ctx, cancel := context.WithTimeout(ctx, layersPatience)
	defer cancel()
	if err := s.Usage.AddLayers(ctx, measured, layersAge); err != nil {
		s.Logger.Debug("the sizes of writable layers are older ones", "err", err)
	}
}

// summaryOf returns the figures of the node, and of the running pods.
func (s *Server) summaryOf(measured []*usage.Pod) *stats.Summary {
	sum := &stats.Summary{Node: s.nodeStats(), Pods: []stats.PodStats{}}
	pods := s.podsByUID()
	for _, m := range measured {
		if m.At.IsZero() {
			continue
		}
		p := podStats(m)
		if pod := pods[m.UID]; pod != nil {
			addStarts(&p, pod)
		}
		sum.Pods = append(sum.Pods, p)
	}
	return sum
}

func (s *Server) podsByUID() map[types.UID]*v1.Pod {
	pods := map[types.UID]*v1.Pod{}
	for _, pod := range s.Pods.Pods() {
		pods[pod.UID] = pod
	}
	return pods
}

// addStarts adds the start times of a pod and its containers.
func addStarts(p *stats.PodStats, pod *v1.Pod) {
	if pod.Status.StartTime != nil {
		p.StartTime = *pod.Status.StartTime
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			i := slices.IndexFunc(p.Containers, func(s stats.ContainerStats) bool { return s.Name == c.Name })
			if i >= 0 && c.State.Running != nil {
				p.Containers[i].StartTime = c.State.Running.StartedAt
			}
		}
	}
}

func podStats(m *usage.Pod) stats.PodStats {
	p := stats.PodStats{
		PodRef:     stats.PodReference{Name: m.Name, Namespace: m.Namespace, UID: string(m.UID)},
		Containers: []stats.ContainerStats{},
		CPU:        cpuStats(m.Figures), Memory: memoryStats(m.Figures), Swap: swapStats(m.Figures),
	}
	for _, c := range m.Containers {
		if c.At.IsZero() {
			continue
		}
		p.Containers = append(p.Containers, stats.ContainerStats{
			Name: c.Name, CPU: cpuStats(c.Figures), Memory: memoryStats(c.Figures), Swap: swapStats(c.Figures),
			Rootfs: layerStats(c.Layer),
		})
	}
	if main := m.Default(); main != nil {
		p.Network = &stats.NetworkStats{Time: metav1.NewTime(main.At), InterfaceStats: interfaceStats(main)}
		for i := range m.Network {
			p.Network.Interfaces = append(p.Network.Interfaces, interfaceStats(&m.Network[i]))
		}
	}
	if m.Tasks != nil {
		p.ProcessStats = &stats.ProcessStats{ProcessCount: m.Tasks}
	}
	return p
}

func interfaceStats(n *usage.Interface) stats.InterfaceStats {
	return stats.InterfaceStats{
		Name: n.Name, RxBytes: &n.Received.Bytes, RxErrors: &n.Received.Errors, TxBytes: &n.Sent.Bytes,
		TxErrors: &n.Sent.Errors,
	}
}

func cpuStats(f usage.Figures) *stats.CPUStats {
	if f.CPU == nil {
		return nil
	}
	total := uint64(f.CPU.Total)
	c := &stats.CPUStats{Time: metav1.NewTime(f.At), UsageCoreNanoSeconds: &total}
	if f.CPURate != nil {
		rate := uint64(*f.CPURate)
		c.UsageNanoCores = &rate
	}
	return c
}

func memoryStats(f usage.Figures) *stats.MemoryStats {
	m := f.Memory
	if m == nil {
		return nil
	}
	of := &stats.MemoryStats{
		Time: metav1.NewTime(f.At), UsageBytes: &m.Usage, WorkingSetBytes: &m.WorkingSet, RSSBytes: &m.RSS,
		PageFaults: &m.Faults, MajorPageFaults: &m.Major,
	}
	if m.Limit > 0 {
		available := m.Limit - min(m.Limit, m.WorkingSet)
		of.AvailableBytes = &available
	}
	return of
}

func swapStats(f usage.Figures) *stats.SwapStats {
	if f.Memory == nil {
		return nil
	}
	return &stats.SwapStats{Time: metav1.NewTime(f.At), SwapUsageBytes: &f.Memory.Swap}
}

func layerStats(l *usage.Layer) *stats.FsStats {
	if l == nil {
		return nil
	}
	return &stats.FsStats{Time: metav1.NewTime(l.At), UsedBytes: &l.Bytes, InodesUsed: &l.Inodes}
}

// nodeStats reads the usage of the whole machine. Unreadable figures are left out.
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
		n.Fs = &stats.FsStats{Time: now, CapacityBytes: &total, AvailableBytes: &free, UsedBytes: &used,
			Inodes: &fs.Files, InodesFree: &fs.Ffree}
	}
	return n
}

// busyNanos returns the busy time of all CPUs since the machine started.
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
	if amounts["MemTotal"] < amounts["MemAvailable"] || amounts["MemTotal"] == 0 ||
		amounts["SwapTotal"] < amounts["SwapFree"] {
		return nil, errors.New("/proc/meminfo has no usable amounts")
	}
	return amounts, nil
}

// deviceOf returns the numbers of the device that a directory is on.
func deviceOf(dir string) string {
	var s unix.Stat_t
	if unix.Stat(dir, &s) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", unix.Major(s.Dev), unix.Minor(s.Dev))
}
