package hpa

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// workload is a Deployment whose pods share a load, each up to its capacity. New pods are pending
// for a while, then not ready for a while.
type workload struct {
	load     int64 // thousandths of a CPU, in total
	replicas int32
	born     []time.Time // of the pods
	lost     func(n int) bool
}

const (
	pendingFor = 5 * time.Second
	unreadyFor = 20 * time.Second
	capacity   = 2000
)

// scale makes and removes pods, the youngest first.
func (w *workload) scale(n int32, now time.Time) {
	w.replicas = n
	for len(w.born) < int(n) {
		w.born = append(w.born, now)
	}
	w.born = w.born[:n]
}

func (w *workload) observe(hpa *autoscalingv2.HorizontalPodAutoscaler, now time.Time) observed {
	o := observed{hpa: hpa, target: target(w.replicas)}
	r := reading{samples: map[string]sample{}}
	ready := int64(0)
	for _, born := range w.born {
		if now.Sub(born) >= pendingFor+unreadyFor {
			ready++
		}
	}
	for i, born := range w.born {
		p := pod(i)
		p.Status.StartTime = ptr.To(metav1.NewTime(born))
		changed := born.Add(pendingFor + unreadyFor)
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(changed)
		var used int64
		switch age := now.Sub(born); {
		case age < pendingFor:
			pending(p)
		case age < pendingFor+unreadyFor:
			p.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse,
				LastTransitionTime: metav1.NewTime(born)}
			used = capacity // a starting pod uses all that it can get
		default:
			used = min(w.load/max(ready, 1), capacity)
		}
		o.pods = append(o.pods, p)
		if p.Status.Phase == corev1.PodRunning && !w.lost(i) {
			r.samples[p.Name] = sample{used, now.Add(-time.Second), 15 * time.Second}
		}
	}
	o.readings = []reading{r}
	return o
}

// step lets an autoscaler act once, as the controller does.
func (w *workload) step(
	hpa *autoscalingv2.HorizontalPodAutoscaler, m memory, now time.Time,
) (plan, *autoscalingv2.HorizontalPodAutoscaler, memory) {
	o := w.observe(hpa, now)
	p := settings.decide(o, m, now)
	if p.rescale {
		p = p.outcome(o, nil, now)
		w.scale(p.replicas, now)
	}
	hpa = hpa.DeepCopy()
	hpa.Status = p.status
	return p, hpa, p.memory
}

func randomBehavior(r *rand.Rand) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	if r.IntN(3) == 0 {
		return nil
	}
	rules := func(longest int32) *autoscalingv2.HPAScalingRules {
		s := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To(r.Int32N(longest + 1)),
			SelectPolicy: ptr.To(
				[]autoscalingv2.ScalingPolicySelect{autoscalingv2.MaxChangePolicySelect,
					autoscalingv2.MinChangePolicySelect}[r.IntN(2)])}
		for range 1 + r.IntN(3) {
			kind, value := autoscalingv2.PodsScalingPolicy, 1+r.Int32N(5)
			if r.IntN(2) == 0 {
				kind, value = autoscalingv2.PercentScalingPolicy, 10+r.Int32N(100)
			}
			s.Policies = append(s.Policies,
				autoscalingv2.HPAScalingPolicy{Type: kind, Value: value, PeriodSeconds: 15 + r.Int32N(120)})
		}
		return s
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(60), ScaleDown: rules(400)}
}

// For any load, rules and initial state: under a constant load an autoscaler comes to rest within
// its bounds, with its pods near their target. At rest it decides the same again, and writes
// neither objects nor events.
func TestConverges(t *testing.T) {
	for seed := range seeds(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			least := 1 + r.Int32N(5)
			most := least + r.Int32N(30)
			percent := 20 + r.Int32N(80)
			hpa := autoscaler(bounds(least, most), metrics(cpu(percent)))
			hpa.Spec.Behavior = randomBehavior(r)
			w := &workload{load: r.Int64N(40_000), lost: func(int) bool { return false }}
			now := start
			w.scale(1+r.Int32N(40), now)
			var m memory
			look := func() plan {
				var p plan
				p, hpa, m = w.step(hpa, m, now)
				now = now.Add(settings.SyncPeriod)
				return p
			}
			for range 400 { // 100 minutes: the slowest policy adds a pod in 135 s, and holds for 400 s
				look()
			}
			rest := w.replicas
			if rest < least || rest > most {
				t.Fatalf("it rests at %d replicas, outside of %d to %d", rest, least, most)
			}
			before := hpa.Status
			for range 100 {
				p := look()
				if p.rescale || w.replicas != rest {
					t.Fatalf("at rest it scales from %d to %d: %s", rest, w.replicas, p.reason)
				}
				if len(p.events) > 0 || !sameConditions(before.Conditions, hpa.Status.Conditions) {
					t.Fatalf("at rest it tells %v, conditions %+v, then %+v", p.events, before.Conditions,
						hpa.Status.Conditions)
				}
			}
			used := float64(min(w.load/int64(rest), capacity)) / 10 // percent of the request
			if ratio := used / float64(percent); rest < most && ratio > 1.13 {
				t.Errorf("it rests at %d of %d replicas, which use %.0f%% for a target of %d%%", rest, most, used,
					percent)
			}
			// One fewer would be too few: it is not at rest with many too many.
			if fewer := rest - 3; fewer >= least && float64(w.load)/float64(fewer)/10/float64(percent) < 0.87 {
				t.Errorf("it rests at %d replicas, although %d would do", rest, fewer)
			}
		})
	}
}

// No more pods are made or removed than the policies allow. These count from the replicas at the
// start of their period.
func TestKeepsToItsRules(t *testing.T) {
	ups, downs := 0, 0
	for seed := range seeds(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		hpa := autoscaler(bounds(1, 60), metrics(cpu(50)), behavior(autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0),
				Policies: []autoscalingv2.HPAScalingPolicy{
					{Type: autoscalingv2.PodsScalingPolicy, Value: 3, PeriodSeconds: 60}}},
			ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](120),
				Policies: []autoscalingv2.HPAScalingPolicy{
					{Type: autoscalingv2.PodsScalingPolicy, Value: 2, PeriodSeconds: 60}}},
		}))
		w := &workload{lost: func(n int) bool { return n%7 == 3 }}
		now := start
		w.scale(10, now)
		var m memory
		type seen struct {
			at       time.Time
			replicas int32
		}
		history := []seen{{now, 10}}
		for look := range 200 {
			if look%20 == 0 {
				w.load = r.Int64N(40_000)
			}
			_, hpa, m = w.step(hpa, m, now)
			var began int32 // replicas when the period began
			for _, h := range history {
				if now.Sub(h.at) >= time.Minute || h == history[0] {
					began = h.replicas
				}
			}
			switch before := history[len(history)-1].replicas; {
			case w.replicas > before && w.replicas > began+3, w.replicas < before && w.replicas < began-2:
				t.Fatalf("seed %d: from %d to %d replicas, of %d a minute ago", seed, before, w.replicas, began)
			case w.replicas > before:
				ups++
			case w.replicas < before:
				downs++
			}
			history = append(history, seen{now, w.replicas})
			now = now.Add(settings.SyncPeriod)
		}
	}
	if ups < 20 || downs < 20 {
		t.Errorf("only %d times up and %d times down", ups, downs)
	}
}

// seeds is how many of a test's random worlds are tried; the short form tries a tenth.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return n / 10
	}
	return n
}

// A recommendation holds for the stabilization window, and a dip shorter than that removes nothing.
func TestStabilizes(t *testing.T) {
	hpa := autoscaler(bounds(1, 20))
	w := &workload{load: 4000, lost: func(int) bool { return false }}
	now := start.Add(-time.Hour)
	w.scale(8, now)
	now = start
	var m memory
	at := func(what string, want int32) {
		t.Helper()
		if w.replicas != want {
			t.Errorf("%s: %d replicas, want %d", what, w.replicas, want)
		}
	}
	look := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(settings.SyncPeriod) {
			_, hpa, m = w.step(hpa, m, now)
		}
	}
	look(time.Minute)
	at("at first", 8)
	w.load = 500
	look(4 * time.Minute)
	at("in a dip of 4 min", 8)
	w.load = 4000
	look(time.Minute)
	at("after it", 8)
	w.load = 500
	look(5 * time.Minute)
	at("for 5 min", 8)
	look(time.Minute)
	at("after the window", 1)
}

// No content of an autoscaler causes a panic, or a number out of bounds.
func FuzzDecide(f *testing.F) {
	f.Add(int32(3), int32(1), int32(10), int32(50), int64(700), int32(4), int32(100), int32(15), uint8(0))
	f.Add(int32(0), int32(0), int32(math.MaxInt32), int32(1), int64(math.MaxInt64), int32(math.MaxInt32),
		int32(math.MaxInt32), int32(1800), uint8(7))
	f.Fuzz(
		func(t *testing.T, current, least, most, percent int32, used int64, value, window, period int32, shape uint8) {
			if current < 0 || current > 1000 || least < 0 || most < max(1, least) || percent < 1 || used < 0 ||
				value < 1 ||
				window < 0 || window > 3600 || period < 1 || period > 1800 {
				return // the API server lets none of that in
			}
			hpa := autoscaler(bounds(least, most), metrics(cpu(percent)))
			if shape&1 != 0 {
				kind := autoscalingv2.PodsScalingPolicy
				if shape&2 != 0 {
					kind = autoscalingv2.PercentScalingPolicy
				}
				rules := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window,
					Policies: []autoscalingv2.HPAScalingPolicy{{Type: kind, Value: value, PeriodSeconds: period}}}
				hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules, ScaleDown: rules}
			}
			var m memory
			for i := range 5 {
				o := observed{hpa: hpa, target: target(current), pods: podsOf(int(min(current, 5))),
					readings: []reading{using(used, used, used>>1, -1, 0)}}
				now := start.Add(time.Duration(i) * settings.SyncPeriod)
				p := settings.decide(o, m, now)
				if !p.rescale {
					m = p.memory
					continue
				}
				if p.replicas < least || p.replicas > most {
					// Only a target that was out of bounds may stay there while policies bring
					// it back.
					t.Fatalf("%d replicas, outside of %d to %d", p.replicas, least, most)
				}
				p = p.outcome(o, nil, now)
				m, current = p.memory, p.replicas
			}
		})
}
