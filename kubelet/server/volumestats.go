package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/barque/barque/kubelet/volumes"
)

// Volumes measures the volumes of pods.
type Volumes interface {
	Stats(ctx context.Context, pod *v1.Pod) []volumes.VolumeUsage
	Counts() []volumes.Count
}

// volumePatience bounds the wait for measurements of volumes, of all pods together.
const volumePatience = time.Second

// addVolumes adds the usage of volumes. Those that are not measured yet are left out.
func (s *Server) addVolumes(ctx context.Context, sum *stats.Summary) {
	ctx, cancel := context.WithTimeout(ctx, volumePatience)
	defer cancel()
	pods := s.podsByUID()
	for i := range sum.Pods {
		if pod := pods[types.UID(sum.Pods[i].PodRef.UID)]; pod != nil {
			sum.Pods[i].VolumeStats = s.volumeStats(ctx, pod)
		}
	}
}

// volumeStats returns the figures of a pod's volumes, under the names of their claims where they
// have claims.
func (s *Server) volumeStats(ctx context.Context, pod *v1.Pod) []stats.VolumeStats {
	if s.Volumes == nil {
		return nil
	}
	var list []stats.VolumeStats
	for _, u := range s.Volumes.Stats(ctx, pod) {
		v := stats.VolumeStats{Name: u.Name, FsStats: stats.FsStats{
			Time: metav1.NewTime(u.At), AvailableBytes: &u.Available, CapacityBytes: &u.Capacity, UsedBytes: &u.Used,
			InodesFree: &u.InodesFree, Inodes: &u.Inodes, InodesUsed: &u.InodesUsed,
		}}
		if u.Claim != "" {
			v.PVCRef = &stats.PVCReference{Name: u.Claim, Namespace: pod.Namespace}
		}
		list = append(list, v)
	}
	return list
}

// volumeCount is the number of volumes by kind: the desired ones of pods, and those set up.
var volumeCount = prometheus.NewDesc("volume_manager_total_volumes",
	"Volumes of pods, by kind and by whether they are wanted or set up.", []string{"plugin_name", "state"}, nil)

// volumeMetrics are the metrics kubelet_volume_stats_* of the claims that pods of the node have,
// and volumeCount.
type volumeMetrics struct{ server *Server }

// volumeFigures are the metrics of each claim.
var volumeFigures = []struct {
	desc *prometheus.Desc
	of   func(*volumes.VolumeUsage) uint64
}{
	{volumeDesc("capacity_bytes", "Capacity in bytes of the volume"),
		func(u *volumes.VolumeUsage) uint64 { return u.Capacity }},
	{volumeDesc("available_bytes", "Number of available bytes in the volume"),
		func(u *volumes.VolumeUsage) uint64 { return u.Available }},
	{volumeDesc("used_bytes", "Number of used bytes in the volume"),
		func(u *volumes.VolumeUsage) uint64 { return u.Used }},
	{volumeDesc("inodes", "Maximum number of inodes in the volume"),
		func(u *volumes.VolumeUsage) uint64 { return u.Inodes }},
	{volumeDesc("inodes_free", "Number of free inodes in the volume"),
		func(u *volumes.VolumeUsage) uint64 { return u.InodesFree }},
	{volumeDesc("inodes_used", "Number of used inodes in the volume"),
		func(u *volumes.VolumeUsage) uint64 { return u.InodesUsed }},
}

func volumeDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_volume_stats_"+name, help, []string{"namespace", "persistentvolumeclaim"}, nil)
}

// Describe implements prometheus.Collector.
func (volumeMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- volumeCount
	for _, f := range volumeFigures {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector. A claim that several pods have counts once.
func (m volumeMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.server.Volumes.Counts() {
		out <- prometheus.MustNewConstMetric(volumeCount, prometheus.GaugeValue, float64(c.Wanted), c.Plugin,
			"desired_state_of_world")
		out <- prometheus.MustNewConstMetric(volumeCount, prometheus.GaugeValue, float64(c.SetUp), c.Plugin,
			"actual_state_of_world")
	}
	ctx, cancel := context.WithTimeout(context.Background(), volumePatience)
	defer cancel()
	told := map[[2]string]bool{}
	for _, pod := range m.server.Pods.Pods() {
		for _, u := range m.server.Volumes.Stats(ctx, pod) {
			claim := [2]string{pod.Namespace, u.Claim}
			if u.Claim == "" || told[claim] {
				continue
			}
			told[claim] = true
			for _, f := range volumeFigures {
				out <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, float64(f.of(&u)), pod.Namespace,
					u.Claim)
			}
		}
	}
}
