package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/pods"
)

// Dashboards filter by these names.
func TestOperations(t *testing.T) {
	for method, want := range map[string]string{
		"/runtime.v1.RuntimeService/RunPodSandbox":            "run_podsandbox",
		"/runtime.v1.RuntimeService/ListPodSandbox":           "list_podsandbox",
		"/runtime.v1.RuntimeService/PodSandboxStatus":         "podsandbox_status",
		"/runtime.v1.RuntimeService/UpdateContainerResources": "update_container",
		"/runtime.v1.ImageService/PullImage":                  "pull_image",
		"/runtime.v1.RuntimeService/ExecSync":                 "exec_sync",
	} {
		if got := operation(method); got != want {
			t.Errorf("%s: %s, want %s", method, got, want)
		}
	}
	m, broken := New(), errors.New("broken")
	call := func(method string, answer error) {
		err := m.Interceptor()(t.Context(), method, nil, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return answer })
		if !errors.Is(err, answer) {
			t.Errorf("%s: %v", method, err)
		}
	}
	call("/s/RunPodSandbox", nil)
	call("/s/RunPodSandbox", broken)
	call("/s/StartContainer", nil)
	expect(t, m, `
# HELP kubelet_runtime_operations_errors_total Calls of the container runtime that failed, by kind.
# TYPE kubelet_runtime_operations_errors_total counter
kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"} 1
# HELP kubelet_runtime_operations_total Calls of the container runtime, by kind.
# TYPE kubelet_runtime_operations_total counter
kubelet_runtime_operations_total{operation_type="run_podsandbox"} 2
kubelet_runtime_operations_total{operation_type="start_container"} 1
# HELP kubelet_started_containers_total Containers whose start was asked for.
# TYPE kubelet_started_containers_total counter
kubelet_started_containers_total 1
# HELP kubelet_started_pods_total Sandboxes of pods that were asked for.
# TYPE kubelet_started_pods_total counter
kubelet_started_pods_total 2
`, "kubelet_runtime_operations_errors_total", "kubelet_runtime_operations_total", "kubelet_started_containers_total",
		"kubelet_started_pods_total")
}

func expect(t *testing.T, m *Metrics, text string, names ...string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.Collectors()...)
	if err := testutil.GatherAndCompare(registry, strings.NewReader(text), names...); err != nil {
		t.Error(err)
	}
}

// sums returns how often each histogram was observed, and the sum.
func sums(t *testing.T, m *Metrics) map[string][2]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][2]float64{}
	for _, f := range families {
		for _, metric := range f.Metric {
			if h := metric.Histogram; h != nil {
				name := f.GetName()
				for _, l := range metric.Label {
					name += " " + l.GetValue()
				}
				of[name] = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
			}
		}
	}
	return of
}

// written swallows statuses.
type written struct{ pods.StatusWriter }

func (written) Set(*v1.Pod, v1.PodStatus) {}
func (written) Forget(types.UID)          {}

// slow takes three seconds for an image.
type slow struct{}

func (slow) Ensure(context.Context, *v1.Pod, *v1.Container, *runtimeapi.PodSandboxConfig) (string, error) {
	time.Sleep(3 * time.Second)
	return "image", nil
}

// groups takes a second for each call.
type groups struct{ pods.CgroupManager }

func (groups) Ensure(*v1.Pod) error   { time.Sleep(time.Second); return nil }
func (groups) Widen(*v1.Pod) error    { time.Sleep(time.Second); return nil }
func (groups) Remove(types.UID) error { time.Sleep(time.Second); return nil }

func TestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		status, puller, cgroups := m.Status(written{}), m.Puller(slow{}), m.Cgroups(groups{})
		pod := func(uid types.UID) *v1.Pod {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, CreationTimestamp: metav1.Now()}}
		}
		a, early := pod("a"), pod("early")
		time.Sleep(time.Second)
		started := metav1.Now()
		status.Set(early, v1.PodStatus{Phase: v1.PodRunning}) // it ran before this kubelet
		status.Set(a, v1.PodStatus{Phase: v1.PodPending, StartTime: &started})
		time.Sleep(time.Second)
		if ref, err := puller.Ensure(t.Context(), a, nil, nil); ref != "image" || err != nil {
			t.Error(ref, err)
		}
		status.Set(a, v1.PodStatus{Phase: v1.PodPending, StartTime: &started})
		status.Set(a, v1.PodStatus{Phase: v1.PodRunning, StartTime: &started})
		status.Set(a, v1.PodStatus{Phase: v1.PodRunning, StartTime: &started})
		failed := pod("failed")
		status.Set(failed, v1.PodStatus{Phase: v1.PodPending})
		status.Set(failed, v1.PodStatus{Phase: v1.PodFailed})
		status.Set(pod("left"), v1.PodStatus{Phase: v1.PodPending})
		status.Forget("left")
		if len(m.pending) != 0 {
			t.Errorf("%d pods are taken for starting", len(m.pending))
		}
		if err := errors.Join(cgroups.Ensure(a), cgroups.Ensure(a), cgroups.Widen(a), cgroups.Remove("a")); err != nil {
			t.Error(err)
		}
		now := time.Now()
		m.Relisted(now, now.Add(2*time.Second))
		m.Relisted(now.Add(10*time.Second), now.Add(11*time.Second))
		m.Stepped(false, time.Second)
		m.Stepped(true, 2*time.Second)
		for name, want := range map[string][2]float64{
			"kubelet_pod_start_duration_seconds": {1, 4}, "kubelet_pod_start_total_duration_seconds": {1, 5},
			"kubelet_pod_start_sli_duration_seconds":          {1, 2},
			"kubelet_cgroup_manager_duration_seconds create":  {2, 2},
			"kubelet_cgroup_manager_duration_seconds update":  {1, 1},
			"kubelet_cgroup_manager_duration_seconds destroy": {1, 1},
			"kubelet_pleg_relist_duration_seconds":            {2, 3}, "kubelet_pleg_relist_interval_seconds": {1, 10},
			"kubelet_pod_worker_duration_seconds sync":        {1, 1},
			"kubelet_pod_worker_duration_seconds terminating": {1, 2},
		} {
			if got := sums(t, m)[name]; got != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
}

// TestEvictions: a signal that has a threshold has a series from the start.
func TestEvictions(t *testing.T) {
	m := New()
	m.Watches("memory.available")
	m.Watches("nodefs.available")
	m.Evicted("memory.available")
	expect(t, m, `
# HELP kubelet_evictions Pods that were evicted for lack of a resource, by the signal of it.
# TYPE kubelet_evictions counter
kubelet_evictions{eviction_signal="memory.available"} 1
kubelet_evictions{eviction_signal="nodefs.available"} 0
`, "kubelet_evictions")
}
