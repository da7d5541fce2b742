package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/usage"
	"github.com/barque/barque/kubelet/volumes"
)

// measured is a node whose pods are measured.
type measured struct {
	pods   []*usage.Pod
	err    error
	layers func(ctx context.Context) error
}

func (m measured) Pods(context.Context) ([]*usage.Pod, error) { return m.pods, m.err }

func (m measured) AddLayers(ctx context.Context, pods []*usage.Pod, _ time.Duration) error {
	for _, p := range pods {
		for i := range p.Containers {
			p.Containers[i].Layer = &usage.Layer{At: time.UnixMilli(1_600_000_000_000), Bytes: 4096, Inodes: 2}
		}
	}
	if m.layers != nil {
		return m.layers(ctx)
	}
	return nil
}

// used is a pod with one container.
func used(pod, container string, at time.Time) *usage.Pod {
	tasks, rate := uint64(3), 250*time.Millisecond
	figures := usage.Figures{At: at, CPURate: &rate, Stats: cgroups.Stats{
		CPU: &cgroups.CPUStats{Total: 2500 * time.Millisecond, User: 2 * time.Second,
			System: 500 * time.Millisecond},
		Throttled: &cgroups.Throttling{Periods: 10, Throttled: 4, Time: 1500 * time.Millisecond},
		Memory: &cgroups.MemoryStats{Usage: 96 << 20, WorkingSet: 64 << 20, RSS: 32 << 20, Cache: 16 << 20,
			Mapped: 8 << 20, Swap: 4096, Limit: 128 << 20, Faults: 9, Major: 1, Refused: 5, Killed: 1},
		Tasks: &tasks,
		IO:    map[string]*cgroups.IOStats{"0:77": {ReadBytes: 10, WrittenBytes: 20, Reads: 1, Writes: 2}},
	}}
	return &usage.Pod{
		UID: types.UID("uid-" + pod), Namespace: "ns", Name: pod, Group: "/pods/" + pod, Figures: figures,
		Containers: []usage.Container{
			{ID: "abc", Name: container, Group: "/pods/" + pod + "/abc", Running: true, Figures: figures},
			{ID: "dead", Name: "init"}},
	}
}

// metrics-server reads these names and labels from any node.
func TestResourceMetrics(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	started := metav1.NewTime(at.Add(-time.Minute))
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-p"}, Status: v1.PodStatus{
		ContainerStatuses: []v1.ContainerStatus{
			{Name: "c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: started}}}},
	}}
	tell := func(u Usage) string {
		t.Helper()
		s := &Server{
			Config: Config{Usage: u, Pods: podList{pod}, Now: func() time.Time { return at }, RootDir: t.TempDir()}}
		w := httptest.NewRecorder()
		s.resourceMetrics(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics/resource", nil))
		if w.Code != http.StatusOK {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	wants := func(text string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains(text, line) {
				t.Errorf("%q is missing of\n%s", line, text)
			}
		}
	}
	wants(tell(measured{pods: []*usage.Pod{used("p", "c", at)}}),
		`container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 2.5 1700000000000`,
		`container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 6.7108864e+07 1700000000000`,
		`container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.69999994e+09`,
		`container_swap_usage_bytes{container="c",namespace="ns",pod="p"} 4096 1700000000000`,
		`pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 2.5 1700000000000`,
		`pod_memory_working_set_bytes{namespace="ns",pod="p"} 6.7108864e+07 1700000000000`,
		"\nnode_cpu_usage_seconds_total ", "\nnode_memory_working_set_bytes ", "\nnode_swap_usage_bytes ",
		"\nresource_scrape_error 0\n",
	)
	// A container that is listed twice hides no other figures.
	wants(tell(measured{pods: []*usage.Pod{used("p", "c", at), used("p", "c", at), used("q", "c", at)}}),
		`container_cpu_usage_seconds_total{container="c",namespace="ns",pod="q"} 2.5`)
	wants(tell(measured{err: errors.New("the runtime is away")}), "\nresource_scrape_error 1\n",
		"\nnode_cpu_usage_seconds_total ")
}

// Dashboards read these names and labels from any node.
func TestCadvisorMetrics(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	limit := v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("64Mi")}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-p"}, Status: v1.PodStatus{
		ContainerStatuses: []v1.ContainerStatus{
			{Name: "c", ContainerID: "containerd://abc", Image: "app:1",
				Resources: &v1.ResourceRequirements{Limits: limit},
				State: v1.ContainerState{
					Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(at.Add(-time.Minute))}}}},
	}}
	p := used("p", "c", at)
	p.Network = []usage.Interface{
		{Name: "eth0", At: at, Received: usage.Traffic{Bytes: 7, Packets: 3, Errors: 2, Dropped: 1},
			Sent: usage.Traffic{Bytes: 9}}}
	s := &Server{
		Config: Config{Usage: measured{pods: []*usage.Pod{p}}, Pods: podList{pod}, Now: func() time.Time { return at },
			RootDir: t.TempDir()}}
	w := httptest.NewRecorder()
	s.cadvisorMetrics(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics/cadvisor", nil))
	const labels = `id="/pods/p/abc",image="app:1",name="abc",namespace="ns",pod="p"} `
	const whole = `id="/pods/p",image="",name="",namespace="ns",pod="p"} `
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="c",cpu="total",` + labels + `2.5 1700000000000`,
		`container_cpu_usage_seconds_total{container="",cpu="total",` + whole + `2.5 1700000000000`,
		`container_cpu_user_seconds_total{container="c",` + labels + `2 1700000000000`,
		`container_cpu_cfs_periods_total{container="c",` + labels + `10 `,
		`container_cpu_cfs_throttled_periods_total{container="c",` + labels + `4 `,
		`container_cpu_cfs_throttled_seconds_total{container="c",` + labels + `1.5 `,
		`container_memory_working_set_bytes{container="c",` + labels + `6.7108864e+07 1700000000000`,
		`container_memory_cache{container="c",` + labels + `1.6777216e+07 `,
		`container_memory_rss{container="c",` + labels + `3.3554432e+07 `,
		`container_memory_swap{container="c",` + labels + `4096 `,
		`container_memory_mapped_file{container="c",` + labels + `8.388608e+06 `,
		`container_memory_failcnt{container="c",` + labels + `5 `,
		`container_oom_events_total{container="c",` + labels + `1 `,
		`container_memory_failures_total{container="c",failure_type="pgmajfault",id="/pods/p/abc",image="app:1",name="abc",namespace="ns",pod="p",scope="hierarchy"} 1 `,
		`container_threads{container="c",` + labels + `3 `,
		`container_fs_reads_bytes_total{container="c",device="0:77",` + labels + `10 `,
		`container_fs_writes_total{container="c",device="0:77",` + labels + `2 `,
		`4096 1600000000000`, // the layer, at its own time
		`container_spec_memory_limit_bytes{container="c",` + labels + `6.7108864e+07`,
		`container_spec_cpu_quota{container="c",` + labels + `50000`,
		`container_spec_cpu_period{container="c",` + labels + `100000`,
		`container_spec_cpu_shares{container="c",` + labels + `512`,
		`container_start_time_seconds{container="c",` + labels + `1.69999994e+09`,
		`container_network_receive_bytes_total{container="",id="/pods/p",image="",interface="eth0",name="",namespace="ns",pod="p"} 7 1700000000000`,
		`container_network_receive_packets_dropped_total{container="",id="/pods/p",image="",interface="eth0",name="",namespace="ns",pod="p"} 1 `,
		`container_network_transmit_bytes_total{container="",id="/pods/p",image="",interface="eth0",name="",namespace="ns",pod="p"} 9 `,
		`container_cpu_usage_seconds_total{container="",cpu="total",id="/",image="",name="",namespace="",pod=""} `,
		`container_memory_working_set_bytes{container="",id="/",image="",name="",namespace="",pod=""} `,
		`machine_cpu_cores `, `machine_memory_bytes `,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), `container="init"`) {
		t.Error("a container that has ended has figures")
	}
	p.Throttled = &cgroups.Throttling{} // the pod has no limit, the container has
	w = httptest.NewRecorder()
	s.cadvisorMetrics(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics/cadvisor", nil))
	if strings.Count(w.Body.String(), "\ncontainer_cpu_cfs_periods_total{") != 1 {
		t.Error("a group without a limit of CPU counts its periods")
	}
}

// Clients read these names from any node.
func TestSummary(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	p := used("p", "c", at)
	p.Network = []usage.Interface{{Name: "net1", At: at}, {Name: "eth0", At: at, Received: usage.Traffic{Bytes: 7}}}
	s := &Server{
		Config: Config{Usage: measured{pods: []*usage.Pod{p, {UID: "ended", Namespace: "ns", Name: "ended"}}},
			Pods: podList{}, Now: time.Now, RootDir: t.TempDir()}}
	w := httptest.NewRecorder()
	s.summary(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/stats/summary", nil))
	var got stats.Summary
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Pods) != 1 ||
		len(got.Pods[0].Containers) != 1 {
		t.Fatalf("%v: %s", err, w.Body)
	}
	pod, c := got.Pods[0], got.Pods[0].Containers[0]
	if pod.PodRef.Name != "p" || *pod.CPU.UsageCoreNanoSeconds != 2_500_000_000 ||
		*pod.CPU.UsageNanoCores != 250_000_000 || *pod.ProcessStats.ProcessCount != 3 ||
		pod.Network.Name != "eth0" || *pod.Network.RxBytes != 7 || len(pod.Network.Interfaces) != 2 {
		t.Errorf("the pod: %s", w.Body)
	}
	if c.Name != "c" || *c.Memory.WorkingSetBytes != 64<<20 || *c.Memory.AvailableBytes != 64<<20 ||
		*c.Memory.RSSBytes != 32<<20 || *c.Swap.SwapUsageBytes != 4096 ||
		*c.Rootfs.UsedBytes != 4096 || *c.Rootfs.InodesUsed != 2 {
		t.Errorf("the container: %s", w.Body)
	}
	// With one group that cannot be read the others are shown; without any there is an error.
	for _, c := range []struct {
		usage Usage
		want  int
	}{{measured{pods: []*usage.Pod{p}, err: errors.New("a damaged group")}, http.StatusOK},
		{measured{err: errors.New("no runtime")}, http.StatusInternalServerError}} {
		s.Usage, s.Logger = c.usage, slog.New(slog.DiscardHandler)
		w := httptest.NewRecorder()
		if s.summary(w,
			httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/stats/summary", nil)); w.Code != c.want {
			t.Errorf("%+v: %d, want %d", c.usage, w.Code, c.want)
		}
	}
}

// unmeasured volumes have no figures yet.
type unmeasured struct{ asked int }

func (u *unmeasured) Counts() []volumes.Count { return nil }

func (u *unmeasured) Stats(ctx context.Context, _ *v1.Pod) []volumes.VolumeUsage {
	u.asked++
	<-ctx.Done()
	return nil
}

// counted volumes have numbers.
type counted struct{ unmeasured }

func (counted) Counts() []volumes.Count {
	return []volumes.Count{{Plugin: "kubernetes.io/configmap", Wanted: 3, SetUp: 2}}
}

// TestNumbersOfVolumes: the dashboard of kubelets finds the volumes that are wanted and set up.
func TestNumbersOfVolumes(t *testing.T) {
	s := &Server{Config: Config{Pods: podList{}, Volumes: &counted{}}}
	if err := testutil.CollectAndCompare(volumeMetrics{s}, strings.NewReader(`
# HELP volume_manager_total_volumes Volumes of pods, by kind and by whether they are wanted or set up.
# TYPE volume_manager_total_volumes gauge
volume_manager_total_volumes{plugin_name="kubernetes.io/configmap",state="actual_state_of_world"} 2
volume_manager_total_volumes{plugin_name="kubernetes.io/configmap",state="desired_state_of_world"} 3
`), "volume_manager_total_volumes"); err != nil {
		t.Error(err)
	}
}

// TestScrapesDoNotWaitForDisks: kubectl top and autoscalers give a node seconds. Clients that want
// volumes wait a second for all of them together, and those that want layers another one.
func TestScrapesDoNotWaitForDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list podList
		var pods []*usage.Pod
		for i := range 20 {
			name := fmt.Sprint("p", i)
			list = append(list,
				&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}})
			pods = append(pods, used(name, "c", time.Now()))
		}
		slow := &unmeasured{}
		hung := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		s := &Server{
			Config: Config{Usage: measured{pods: pods, layers: hung}, Pods: list, Volumes: slow, Now: time.Now,
				RootDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}}
		for _, c := range []struct {
			path  string
			serve http.HandlerFunc
			asked int
			takes time.Duration
		}{
			{"/metrics/resource", s.resourceMetrics, 0, 0},
			{"/metrics/cadvisor", s.cadvisorMetrics, 0, time.Second},
			{"/stats/summary", s.summary, 20, 2 * time.Second},
		} {
			began := time.Now()
			w := httptest.NewRecorder()
			c.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil))
			if took := time.Since(began); w.Code != http.StatusOK || slow.asked != c.asked || took != c.takes {
				t.Errorf("%s: %d after %s of virtual time, volumes of %d pods asked for; want %s and %d", c.path,
					w.Code, took, slow.asked, c.takes, c.asked)
			}
		}
	})
}
