package hpa

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
)

var deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

// fakeTargets has one target, and answers with its metrics.
type fakeTargets struct {
	mu        sync.Mutex
	replicas  int32
	used      []int64
	conflicts int   // puts to be refused
	others    int32 // added by another client at a conflict
	puts      []int32
	looks     int
}

func (f *fakeTargets) get(
	_ context.Context, _ string, ref autoscalingv2.CrossVersionObjectReference,
) (*autoscalingv1.Scale, schema.GroupResource, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	if ref.Name != "web" {
		return nil, deployments, apierrors.NewNotFound(deployments, ref.Name)
	}
	return target(f.replicas), deployments, nil
}

func (f *fakeTargets) put(_ context.Context, _ schema.GroupResource, s *autoscalingv1.Scale) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conflicts > 0 {
		f.conflicts--
		f.replicas += f.others
		return apierrors.NewConflict(deployments, "web", errors.New("it has changed"))
	}
	f.replicas = s.Spec.Replicas
	f.puts = append(f.puts, f.replicas)
	return nil
}

func (f *fakeTargets) read(context.Context, string, labels.Selector, *autoscalingv2.MetricSpec) reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := using(f.used...)
	for name, s := range r.samples {
		s.at = time.Now()
		r.samples[name] = s
	}
	return r
}

func (f *fakeTargets) set(change func(*fakeTargets)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// testWorld is an in-memory API with a controller. It is for a bubble of virtual time.
type testWorld struct {
	*controllertest.Cluster
	targets *fakeTargets
	stop    func()
	t       *testing.T
}

func newWorld(t *testing.T, targets *fakeTargets, hpas ...*autoscalingv2.HorizontalPodAutoscaler) *testWorld {
	t.Helper()
	w := &testWorld{Cluster: controllertest.New(t), targets: targets, t: t}
	for _, hpa := range hpas {
		w.Add(hpa)
	}
	for i := range targets.used {
		w.Add(pod(i, func(p *corev1.Pod) {
			p.Status.StartTime.Time = time.Now().Add(-time.Hour)
			p.Status.Conditions[0].LastTransitionTime.Time = time.Now().Add(-time.Hour)
		}))
	}
	c, err := New(Config{Informers: w.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.sources = func(context.Context) (scales, metricsReader, error) { return targets, targets, nil }
	w.stop = w.Start(c.Run)
	return w
}

func (w *testWorld) hpa(name string) *autoscalingv2.HorizontalPodAutoscaler {
	w.t.Helper()
	hpa, err := w.Client.AutoscalingV2().HorizontalPodAutoscalers("ns").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return hpa
}

// writes counts the writes of a resource.
func (w *testWorld) writes(resource string) (n int) {
	for _, a := range w.Client.Actions() {
		if a.GetResource().Resource == resource && a.GetVerb() != "get" && a.GetVerb() != "list" &&
			a.GetVerb() != "watch" {
			n++
		}
	}
	return n
}

func (w *testWorld) events() string {
	var out []string
	for _, a := range w.Client.Actions() {
		if c, ok := a.(clienttesting.CreateAction); ok && a.GetResource().Resource == "events" {
			out = append(out, c.GetObject().(*corev1.Event).Reason)
		}
	}
	return strings.Join(out, " ")
}

// An autoscaler is looked at every SyncPeriod, scales its target, and writes nothing when nothing
// changes.
func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTargets{replicas: 3, used: []int64{800, 900, 1000}}
		w := newWorld(t, f, autoscaler())
		defer w.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		if hpa := w.hpa("a"); f.replicas != 6 || hpa.Status.DesiredReplicas != 6 ||
			condition(hpa.Status, autoscalingv2.AbleToScale) != "True SucceededRescale" {
			t.Errorf("%d replicas, status %+v", f.replicas, hpa.Status)
		}
		if got := w.events(); got != "SuccessfulRescale" {
			t.Errorf("events: %s", got)
		}
		f.set(func(f *fakeTargets) { f.used = []int64{500, 500, 500} })
		time.Sleep(2 * settings.SyncPeriod)
		synctest.Wait()
		looks, statuses, events := f.looks, w.writes("horizontalpodautoscalers"), w.writes("events")
		time.Sleep(10 * settings.SyncPeriod)
		synctest.Wait()
		if got := f.looks - looks; got != 10 {
			t.Errorf("%d looks in ten periods", got)
		}
		if w.writes("horizontalpodautoscalers") != statuses || w.writes("events") != events {
			t.Errorf("it writes although nothing changes: %v", w.Client.Actions())
		}
		if len(f.puts) != 1 {
			t.Errorf("it was scaled to %v", f.puts)
		}

		// A change of the spec is not waited for.
		hpa := w.hpa("a")
		hpa.Spec.MaxReplicas = 4
		if _, err := w.Client.AutoscalingV2().HorizontalPodAutoscalers("ns").Update(t.Context(), hpa,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if f.replicas != 4 {
			t.Errorf("%d replicas after the bound was lowered to 4", f.replicas)
		}

		if err := w.Client.AutoscalingV2().HorizontalPodAutoscalers("ns").Delete(t.Context(), "a",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settings.SyncPeriod)
		synctest.Wait()
		looks = f.looks
		time.Sleep(10 * settings.SyncPeriod)
		synctest.Wait()
		if f.looks != looks {
			t.Error("an autoscaler that has gone is looked at")
		}
	})
}

// A new leader knows nothing of earlier recommendations: it does not scale down before the window
// has passed.
func TestNewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTargets{replicas: 6, used: []int64{100, 100, 100, 100, 100, 100}}
		w := newWorld(t, f, autoscaler())
		defer w.stop()
		time.Sleep(settings.DownscaleStabilization)
		synctest.Wait()
		if f.replicas != 6 {
			t.Errorf("%d replicas within the window", f.replicas)
		}
		if got := condition(w.hpa("a").Status, autoscalingv2.AbleToScale); got != "True ScaleDownStabilized" {
			t.Errorf("AbleToScale is %s", got)
		}
		time.Sleep(2 * settings.SyncPeriod)
		synctest.Wait()
		if f.replicas != 2 {
			t.Errorf("%d replicas after the window", f.replicas)
		}
	})
}

// Two autoscalers of one target, or of the same pods, leave it alone, and say so once.
func TestRivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTargets{replicas: 3, used: []int64{800, 900, 1000}}
		other := autoscaler(func(hpa *autoscalingv2.HorizontalPodAutoscaler) { hpa.Name, hpa.UID = "b", "u2" })
		w := newWorld(t, f, autoscaler(), other)
		defer w.stop()
		time.Sleep(10 * settings.SyncPeriod)
		synctest.Wait()
		if len(f.puts) > 0 {
			t.Errorf("it was scaled to %v", f.puts)
		}
		for _, name := range []string{"a", "b"} {
			if got := condition(w.hpa(name).Status, autoscalingv2.ScalingActive); got != "False AmbiguousSelector" {
				t.Errorf("ScalingActive of %s is %s", name, got)
			}
		}
		if got := strings.Count(w.events(), "AmbiguousSelector"); got != 2 {
			t.Errorf("it was told %d times: %s", got, w.events())
		}
		if err := w.Client.AutoscalingV2().HorizontalPodAutoscalers("ns").Delete(t.Context(), "b",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settings.SyncPeriod)
		synctest.Wait()
		if f.replicas != 6 {
			t.Errorf("%d replicas when the other one has gone", f.replicas)
		}
	})
}

// A concurrently changed target is scaled, unless another client has scaled it.
func TestConflicts(t *testing.T) {
	for name, test := range map[string]struct {
		others int32
		want   []int32
	}{
		"something else has changed": {0, []int32{6}},
		"it was scaled":              {1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeTargets{replicas: 3, used: []int64{800, 900, 1000}, conflicts: 2, others: test.others}
				w := newWorld(t, f, autoscaler())
				defer w.stop()
				time.Sleep(time.Second)
				synctest.Wait()
				if len(f.puts) != len(test.want) || len(f.puts) > 0 && f.puts[0] != test.want[0] {
					t.Errorf("it was scaled to %v, want %v", f.puts, test.want)
				}
				if failed := condition(w.hpa("a").Status,
					autoscalingv2.AbleToScale) == "False FailedUpdateScale"; failed != (test.want == nil) {
					t.Errorf("status %+v", w.hpa("a").Status)
				}
				time.Sleep(2 * settings.SyncPeriod)
				synctest.Wait()
				if len(f.puts) == 0 {
					t.Error("it is never scaled")
				}
			})
		})
	}
}

// A missing target is reported once, and found when it is created.
func TestNoTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTargets{replicas: 3, used: []int64{800, 900, 1000}}
		w := newWorld(t, f,
			autoscaler(func(hpa *autoscalingv2.HorizontalPodAutoscaler) { hpa.Spec.ScaleTargetRef.Name = "none" }))
		defer w.stop()
		time.Sleep(20 * settings.SyncPeriod)
		synctest.Wait()
		if got := w.events(); got != "FailedGetScale" {
			t.Errorf("events: %s", got)
		}
		if got := w.writes("horizontalpodautoscalers"); got != 1 {
			t.Errorf("%d writes of the status", got)
		}
	})
}
