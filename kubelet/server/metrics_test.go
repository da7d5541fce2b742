package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/volumes"
)

// measured is a runtime that tells what sandboxes use.
type measured struct {
	Runtime
	boxes []*runtimeapi.PodSandboxStats
	err   error
}

func (m measured) ListPodSandboxStats(context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	return m.boxes, m.err
}

func number(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

// box is a sandbox with one container.
func box(pod, container string, at time.Time) *runtimeapi.PodSandboxStats {
	cpu := &runtimeapi.CpuUsage{Timestamp: at.UnixNano(), UsageCoreNanoSeconds: number(2_500_000_000)}
	memory := &runtimeapi.MemoryUsage{Timestamp: at.UnixNano(), WorkingSetBytes: number(64 << 20)}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "ns", Uid: "uid-" + pod}},
		Linux: &runtimeapi.LinuxPodSandboxStats{Cpu: cpu, Memory: memory, Containers: []*runtimeapi.ContainerStats{{
			Attributes: &runtimeapi.ContainerAttributes{Labels: map[string]string{cri.LabelContainerName: container}},
			Cpu:        cpu, Memory: memory,
			Swap: &runtimeapi.SwapUsage{Timestamp: at.UnixNano(), SwapUsageBytes: number(4096)},
		}}},
	}
}

// The names and labels are those that metrics-server reads of any node.
func TestResourceMetrics(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	started := metav1.NewTime(at.Add(-time.Minute))
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-p"}, Status: v1.PodStatus{
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: started}}}},
	}}
	tell := func(r Runtime) string {
		t.Helper()
		s := &Server{Config: Config{Runtime: r, Pods: podList{pod}, Now: func() time.Time { return at }, RootDir: t.TempDir()}}
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
	wants(tell(measured{boxes: []*runtimeapi.PodSandboxStats{box("p", "c", at)}}),
		`container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 2.5 1700000000000`,
		`container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 6.7108864e+07 1700000000000`,
		`container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.69999994e+09`,
		`container_swap_usage_bytes{container="c",namespace="ns",pod="p"} 4096 1700000000000`,
		`pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 2.5 1700000000000`,
		`pod_memory_working_set_bytes{namespace="ns",pod="p"} 6.7108864e+07 1700000000000`,
		"\nnode_cpu_usage_seconds_total ", "\nnode_memory_working_set_bytes ", "\nnode_swap_usage_bytes ",
		"\nresource_scrape_error 0\n",
	)
	// A pod that is there twice, as while its sandbox is being replaced, takes nobody else's
	// figures away.
	wants(tell(measured{boxes: []*runtimeapi.PodSandboxStats{box("p", "c", at), box("p", "c", at), box("q", "c", at)}}),
		`container_cpu_usage_seconds_total{container="c",namespace="ns",pod="q"} 2.5`)
	wants(tell(measured{err: errors.New("the runtime is away")}), "\nresource_scrape_error 1\n", "\nnode_cpu_usage_seconds_total ")
}

// The names and labels are those that dashboards read of any node.
func TestCadvisorMetrics(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	limit := v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("64Mi")}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-p"}, Status: v1.PodStatus{
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", ContainerID: "containerd://abc", Image: "app:1", Resources: &v1.ResourceRequirements{Limits: limit},
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(at.Add(-time.Minute))}}}},
	}}
	sandbox := box("p", "c", at)
	sandbox.Linux.Network = &runtimeapi.NetworkUsage{Timestamp: at.UnixNano(), DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: number(7), TxBytes: number(9)}}
	s := &Server{Config: Config{Runtime: measured{boxes: []*runtimeapi.PodSandboxStats{sandbox}}, Pods: podList{pod}, Now: func() time.Time { return at }, RootDir: t.TempDir()}}
	w := httptest.NewRecorder()
	s.cadvisorMetrics(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics/cadvisor", nil))
	const labels = `container="c",id="/poduid-p/abc",image="app:1",name="abc",namespace="ns",pod="p"}`
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="c",cpu="total",id="/poduid-p/abc",image="app:1",name="abc",namespace="ns",pod="p"} 2.5 1700000000000`,
		`container_cpu_usage_seconds_total{container="",cpu="total",id="/poduid-p",image="",name="",namespace="ns",pod="p"} 2.5 1700000000000`,
		`container_memory_working_set_bytes{` + labels + ` 6.7108864e+07 1700000000000`,
		`container_spec_memory_limit_bytes{` + labels + ` 6.7108864e+07`,
		`container_spec_cpu_quota{` + labels + ` 50000`,
		`container_start_time_seconds{` + labels + ` 1.69999994e+09`,
		`container_network_receive_bytes_total{container="",id="/poduid-p",image="",interface="eth0",name="",namespace="ns",pod="p"} 7 1700000000000`,
		`machine_cpu_cores `,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, w.Body)
		}
	}
}

// unmeasured volumes have no figures yet.
type unmeasured struct{ asked int }

func (u *unmeasured) Stats(ctx context.Context, _ *v1.Pod) []volumes.VolumeUsage {
	u.asked++
	<-ctx.Done()
	return nil
}

// TestScrapesDoNotWaitForVolumes: kubectl top and autoscalers give a node seconds. Whoever asks for
// volumes waits a second for all of them together.
func TestScrapesDoNotWaitForVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list podList
		var boxes []*runtimeapi.PodSandboxStats
		for i := range 20 {
			name := fmt.Sprint("p", i)
			list = append(list, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}})
			boxes = append(boxes, box(name, "c", time.Now()))
		}
		slow := &unmeasured{}
		s := &Server{Config: Config{Runtime: measured{boxes: boxes}, Pods: list, Volumes: slow, Now: time.Now, RootDir: t.TempDir()}}
		for _, c := range []struct {
			path  string
			serve http.HandlerFunc
			asked int
			takes time.Duration
		}{
			{"/metrics/resource", s.resourceMetrics, 0, 0},
			{"/metrics/cadvisor", s.cadvisorMetrics, 0, 0},
			{"/stats/summary", s.summary, 20, time.Second},
		} {
			began := time.Now()
			w := httptest.NewRecorder()
			c.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil))
			if took := time.Since(began); w.Code != http.StatusOK || slow.asked != c.asked || took != c.takes {
				t.Errorf("%s: %d after %s of virtual time, volumes of %d pods asked for; want %s and %d", c.path, w.Code, took, slow.asked, c.takes, c.asked)
			}
		}
	})
}
