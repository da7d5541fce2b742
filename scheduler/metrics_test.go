package scheduler_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/scheduler"
)

// TestMetricsAndDump: metrics and the dump show the pods that wait.
func TestMetricsAndDump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"))
		registry := prometheus.NewPedanticRegistry()
		sched := s.start(scheduler.Config{Metrics: registry})
		dump := func() string {
			var out bytes.Buffer
			sched.Dump(slog.New(slog.NewTextHandler(&out, nil)))
			return out.String()
		}
		if got := dump(); !strings.Contains(got, "does not lead") {
			t.Errorf("before a term: %s", got)
		}
		depose := s.lead(sched)
		s.put(pod("fits", "1", "1Gi"))
		s.put(pod("huge", "100", "1Gi"))
		s.put(
			pod("gated", "1", "1Gi", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}} }))
		s.eventually("bound", s.bound("fits"))
		s.eventuallyEvent("huge", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu")
		time.Sleep(time.Second)
		want := `
# HELP scheduler_cache_size Nodes, pods and assumed pods in the scheduler's cache.
# TYPE scheduler_cache_size gauge
scheduler_cache_size{type="assumed_pods"} 0
scheduler_cache_size{type="nodes"} 1
scheduler_cache_size{type="pods"} 1
# HELP scheduler_pending_pods Pods that wait, by queue: active (to be tried), backoff, unschedulable or gated.
# TYPE scheduler_pending_pods gauge
scheduler_pending_pods{queue="active"} 0
scheduler_pending_pods{queue="backoff"} 0
scheduler_pending_pods{queue="gated"} 1
scheduler_pending_pods{queue="unschedulable"} 1
# HELP scheduler_schedule_attempts_total Attempts to schedule pods, by result: scheduled, unschedulable (no node fits) or error.
# TYPE scheduler_schedule_attempts_total counter
scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1
scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} 1
# HELP scheduler_unschedulable_pods Unschedulable pods, by the plugin that rejected them: a pod counts for each.
# TYPE scheduler_unschedulable_pods gauge
scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 1
scheduler_unschedulable_pods{plugin="SchedulingGates",profile="default-scheduler"} 1
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "scheduler_cache_size",
			"scheduler_pending_pods",
			"scheduler_schedule_attempts_total", "scheduler_unschedulable_pods"); err != nil {
			t.Error(err)
		}
		got := dump()
		for _, want := range []string{"pod=huge queue=unschedulable", "pod=gated queue=gated", "node=a pods=1"} {
			if !strings.Contains(got, want) {
				t.Errorf("the dump has no %q:\n%s", want, got)
			}
		}
		depose()
		if n, err := testutil.GatherAndCount(registry, "scheduler_unschedulable_pods"); err != nil || n != 0 {
			t.Errorf("after the term: %d plugins, %v", n, err)
		}
	})
}
