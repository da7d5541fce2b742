package nodelifecycle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEvictionTime(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	added := metav1.NewTime(now.Add(-time.Minute))
	taint := func(key string) corev1.Taint {
		return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	}
	came := func(before time.Duration) []corev1.PodCondition {
		return []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-before))}}
	}
	tolerate := func(key string, seconds int64) corev1.Toleration {
		tol := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
		if seconds >= 0 {
			tol.TolerationSeconds = &seconds
		}
		return tol
	}
	const never = time.Duration(-1)
	for name, c := range map[string]struct {
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		want        time.Duration // from when the taint was added
		came        []corev1.PodCondition
	}{
		"no taint":      {nil, nil, never, nil},
		"not tolerated": {[]corev1.Taint{taint("a")}, nil, 0, nil},
		"tolerated for a while": {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("a", 300)},
			300 * time.Second, nil},
		"tolerated for ever": {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("a", -1)}, never, nil},
		"one of two tolerated": {[]corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerate("a", 300)}, 0,
			nil},
		"the shorter of two": {[]corev1.Taint{taint("a"), taint("b")},
			[]corev1.Toleration{tolerate("a", 300), tolerate("b", 20)}, 20 * time.Second, nil},
		"the first that fits": {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("", 30), tolerate("a", 300)},
			30 * time.Second, nil},
		"only NoExecute counts": {[]corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}, nil, never, nil},
		"came before": {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("a", 30)}, 30 * time.Second,
			came(2 * time.Minute)},
		"came later": {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("a", 30)}, 80 * time.Second,
			came(10 * time.Second)},
		"came by a clock ahead": {[]corev1.Taint{taint("a")}, nil, time.Minute, came(-time.Hour)},
		"and is tolerated": {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("a", 30)}, 90 * time.Second,
			came(-time.Hour)},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: c.tolerations},
			Status: corev1.PodStatus{Conditions: c.came}}
		node := &corev1.Node{Spec: corev1.NodeSpec{Taints: c.taints}}
		taints, arrivals := newSightings(), newArrivals()
		for _, look := range []time.Duration{0, 30 * time.Second, 2 * time.Hour} { // each says the same
			now := now.Add(look)
			at, ok := evictionTime(pod, taints.see(node, now), arrivals.of(pod, now))
			if ok != (c.want != never) || (ok && at.Sub(added.Time) != c.want) {
				t.Errorf("%s: looked at %v later: %v after the taint (%v), want %v", name, look, at.Sub(added.Time), ok,
					c.want)
			}
		}
	}
}
