package devicetainteviction

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/controllertest"
)

func start(t *testing.T, objects ...kruntime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(t, objects...)
	ctrl, err := New(Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	return c
}

func condition(t *testing.T, c *controllertest.Cluster, rule string) metav1.Condition {
	r, err := c.Client.ResourceV1().DeviceTaintRules().Get(t.Context(), rule, metav1.GetOptions{})
	if err != nil || len(r.Status.Conditions) != 1 {
		return metav1.Condition{}
	}
	return r.Status.Conditions[0]
}

// gone reports whether the pod's deletion was requested.
func gone(t *testing.T, c *controllertest.Cluster) func() bool {
	return func() bool {
		p, err := c.Client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && p.DeletionTimestamp != nil
	}
}

// TestRuleEvicts: a rule without an effect gets one.
func TestRuleEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := newRule("r", resourcev1.DeviceTaintEffectNone)
		c := start(t, newPod(), newClaim(), newSlice(1), rule)
		controllertest.Eventually(t, "the rule says what it would do",
			func() bool { return condition(t, c, "r").Reason == "NoEffect" })
		if got := condition(t, c, "r").Message; !strings.HasPrefix(got,
			"2 published devices selected. 1 allocated device selected. 1 pod would be evicted") {
			t.Errorf("message %q", got)
		}
		time.Sleep(time.Hour)
		if gone(t, c)() {
			t.Fatal("a rule without effect has evicted")
		}
		changed, err := c.Client.ResourceV1().DeviceTaintRules().Get(t.Context(), "r", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		changed.Spec.Taint.Effect, changed.Spec.Taint.TimeAdded = resourcev1.DeviceTaintEffectNoExecute,
			ptr.To(metav1.Now())
		changed.Generation++
		if _, err := c.Client.ResourceV1().DeviceTaintRules().Update(t.Context(), changed,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the pod goes", gone(t, c))
		controllertest.Eventually(t, "the rule says that it is done",
			func() bool { return condition(t, c, "r").Reason == "Completed" })
	})
}

// TestTolerationRunsOut: the pod goes when its toleration ends, and stays when the taint goes
// before.
func TestTolerationRunsOut(t *testing.T) {
	for _, heals := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			sick := newSlice(1, taint(resourcev1.DeviceTaintEffectNoExecute))
			sick.Spec.Devices[0].Taints[0].TimeAdded = ptr.To(metav1.Now())
			c := start(t, newPod(), newClaim(tolerates(600)), sick)
			time.Sleep(9 * time.Minute)
			if gone(t, c)() {
				t.Fatal("it went too early")
			}
			if heals {
				well, err := c.Client.ResourceV1().ResourceSlices().Get(t.Context(), sick.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				well.Spec.Devices[0].Taints = nil
				if _, err := c.Client.ResourceV1().ResourceSlices().Update(t.Context(), well,
					metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Minute)
			if gone(t, c)() == heals {
				t.Errorf("heals: %t, gone: %t", heals, !heals)
			}
			if heals {
				return
			}
			p, err := c.Client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, cond := range p.Status.Conditions {
				if cond.Type == corev1.DisruptionTarget && cond.Reason == "DeletionByDeviceTaintManager" {
					return
				}
			}
			t.Errorf("conditions %+v", p.Status.Conditions)
		})
	}
}

// TestRuleIsOver: a rule says that no pods are pending when the last one has gone by itself.
func TestRuleIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := newRule("r", resourcev1.DeviceTaintEffectNoExecute)
		rule.Spec.Taint.TimeAdded = ptr.To(metav1.Now())
		c := start(t, newPod(), newClaim(tolerates(3600)), newSlice(1), rule)
		time.Sleep(10 * time.Minute)
		if got := condition(t, c, "r").Reason; got != "PodsPendingEviction" {
			t.Fatalf("reason %q while the pod is tolerated", got)
		}
		if err := c.Client.CoreV1().Pods("ns").Delete(t.Context(), "p",
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := condition(t, c, "r"); got.Status != metav1.ConditionFalse {
			t.Errorf("the condition %+v after the pod has gone", got)
		}
	})
}
