package protection

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/controllertest"
)

const claimFinalizer, volumeFinalizer, classFinalizer = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection",
	"kubernetes.io/vac-protection"

func newClaim(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-c", Finalizers: []string{claimFinalizer}}}
	if change != nil {
		change(c)
	}
	return c
}

// newPod uses the claim p-c.
func newPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{
			{Name: "x"},
			{Name: "c",
				VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "p-c"}}},
		}}}
	if change != nil {
		change(p)
	}
	return p
}

func TestUses(t *testing.T) {
	ephemeral := func(p *corev1.Pod) {
		p.Spec.Volumes[1].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	}
	owned := newClaim(func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{UID: "u", Controller: ptr.To(true)}}
	})
	gone := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](0)
	}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		want  bool
	}{
		"names it": {newPod(nil), newClaim(nil), true},
		"names it, has no node": {newPod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), newClaim(nil),
			false},
		"names it, has ended": {newPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			newClaim(nil), true},
		"names another one": {newPod(nil),
			newClaim(func(c *corev1.PersistentVolumeClaim) { c.Name = "other" }), false},
		"it was made for it":                  {newPod(ephemeral), owned, true},
		"it was made for it, which goes":      {newPod(func(p *corev1.Pod) { ephemeral(p); gone(p) }), owned, false},
		"it has the name, and is another's":   {newPod(ephemeral), newClaim(nil), false},
		"names it, which is about to go, too": {newPod(gone), newClaim(nil), true},
	} {
		if got := uses(c.pod, c.claim); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// start runs a controller over objects.
func start(
	t *testing.T, newController func(Config) (*Controller, error), objects ...kruntime.Object,
) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(t, objects...)
	ctrl, err := newController(Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	return c
}

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, NewClaims, newClaim(nil),
			newClaim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.Finalizers = "old", nil }), newPod(nil))
		claims := c.Client.CoreV1().PersistentVolumeClaims("ns")
		controllertest.Eventually(t, "an older claim gets the finalizer", func() bool {
			is, err := claims.Get(t.Context(), "old", metav1.GetOptions{})
			return err == nil && len(is.Finalizers) == 1 && is.Finalizers[0] == claimFinalizer
		})
		for _, name := range []string{"old", "p-c"} {
			if err := claims.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		gone := func(name string) func() bool {
			return func() bool {
				_, err := claims.Get(t.Context(), name, metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			}
		}
		controllertest.Eventually(t, "a claim that nobody uses goes", gone("old"))
		time.Sleep(time.Hour)
		if gone("p-c")() {
			t.Error("a claim that a pod uses has gone")
		}
		if err := c.Client.CoreV1().Pods("ns").Delete(t.Context(), "p",
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it goes after the pod", gone("p-c"))
	})
}

// A pod that the informer has not heard of counts.
func TestClaimOfANewPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, newClaim(nil))
		ctrl, err := NewClaims(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		other := controllertest.New(t, newPod(nil)) // where the API lists the pods
		c.Start(func(ctx context.Context, client kubernetes.Interface) error {
			return ctrl.Run(ctx, listing{client, other.Client})
		})
		if err := c.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "p-c",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := c.Client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "p-c",
			metav1.GetOptions{}); err != nil {
			t.Errorf("the claim: %v", err)
		}
	})
}

func TestVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume := func(name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
			return &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{volumeFinalizer}},
				Status:     corev1.PersistentVolumeStatus{Phase: phase}}
		}
		c := start(t, NewVolumes, volume("bound", corev1.VolumeBound), volume("free", corev1.VolumeReleased))
		volumes := c.Client.CoreV1().PersistentVolumes()
		gone := func(name string) func() bool {
			return func() bool {
				_, err := volumes.Get(t.Context(), name, metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			}
		}
		for _, name := range []string{"bound", "free"} {
			if err := volumes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		controllertest.Eventually(t, "a free volume goes", gone("free"))
		time.Sleep(time.Hour)
		if gone("bound")() {
			t.Error("a bound volume has gone")
		}
		is, err := volumes.Get(t.Context(), "bound", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		is.Status.Phase = corev1.VolumeReleased
		if _, err := volumes.UpdateStatus(t.Context(), is, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it goes when it is free", gone("bound"))
	})
}

func TestClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: "gold", Finalizers: []string{classFinalizer}}}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"},
			Spec: corev1.PersistentVolumeSpec{VolumeAttributesClassName: ptr.To("gold")}}
		claim := newClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Finalizers, c.Status.CurrentVolumeAttributesClassName = nil, ptr.To("gold")
		})
		c := start(t, NewClasses, class, volume, claim)
		classes := c.Client.StorageV1().VolumeAttributesClasses()
		if err := classes.Delete(t.Context(), "gold", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		gone := func() bool {
			_, err := classes.Get(t.Context(), "gold", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
		time.Sleep(time.Hour)
		if err := c.Client.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if gone() {
			t.Error("a class has gone that a claim names")
		}
		if err := c.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), claim.Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it goes after the claim", gone)
	})
}

func TestUnusedCondition(t *testing.T) {
	now := metav1.NewTime(time.Unix(1000, 0))
	bound := func(status corev1.ConditionStatus) *corev1.PersistentVolumeClaim {
		return newClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimBound
			if status != "" {
				c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
					{Type: corev1.PersistentVolumeClaimUnused, Status: status}}
			}
		})
	}
	ended := newPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	waiting := newPod(func(p *corev1.Pod) { p.Spec.NodeName = "" })
	for name, c := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		pods  []*corev1.Pod
		want  corev1.ConditionStatus // "" when nothing is written
	}{
		"new":               {bound(""), nil, corev1.ConditionTrue},
		"in use":            {bound(""), []*corev1.Pod{newPod(nil)}, corev1.ConditionFalse},
		"by one that waits": {bound(corev1.ConditionTrue), []*corev1.Pod{waiting}, corev1.ConditionFalse},
		"by one of two":     {bound(corev1.ConditionFalse), []*corev1.Pod{ended, waiting}, ""},
		"by one that ended": {bound(corev1.ConditionFalse), []*corev1.Pod{ended}, corev1.ConditionTrue},
		"still unused":      {bound(corev1.ConditionTrue), nil, ""},
		"not bound":         {newClaim(nil), nil, ""},
		"about to go": {
			newClaim(
				func(
					c *corev1.PersistentVolumeClaim,
				) {
					c.Status.Phase, c.DeletionTimestamp = corev1.ClaimBound, &now
				}), nil, ""},
	} {
		got := unusedCondition(c.claim, c.pods, now)
		if (got == nil) != (c.want == "") || got != nil && (got.Status != c.want || got.LastTransitionTime != now) {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
}

func TestUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, NewUnused, newClaim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }),
			newPod(nil))
		condition := func() corev1.PersistentVolumeClaimCondition {
			is, err := c.Client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "p-c", metav1.GetOptions{})
			if err != nil || len(is.Status.Conditions) != 1 {
				return corev1.PersistentVolumeClaimCondition{}
			}
			return is.Status.Conditions[0]
		}
		controllertest.Eventually(t, "it is in use", func() bool { return condition().Reason == "PodUsingPVC" })
		if err := c.Client.CoreV1().Pods("ns").Delete(t.Context(), "p",
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it is not in use", func() bool { return condition().Reason == "NoPodsUsingPVC" })
		since := condition().LastTransitionTime
		time.Sleep(time.Hour)
		if got := condition().LastTransitionTime; got != since || since.IsZero() {
			t.Errorf("unused since %v, an hour later since %v", since, got)
		}
	})
}
