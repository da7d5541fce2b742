package resourceclaim

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

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

func newTemplate() *resourcev1.ResourceClaimTemplate {
	template := &resourcev1.ResourceClaimTemplate{}
	template.Namespace, template.Name = "ns", "template"
	template.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{
		{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "class"}}}
	return template
}

// TestLifeOfAClaim: the claim comes with its template, and goes with the pod.
func TestLifeOfAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, newPod())
		claims, pods := c.Client.ResourceV1().ResourceClaims("ns"), c.Client.CoreV1().Pods("ns")
		time.Sleep(time.Minute)
		if list, err := claims.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			t.Fatalf("without a template: %v, %v", list, err)
		}
		if _, err := c.Client.ResourceV1().ResourceClaimTemplates("ns").Create(t.Context(), newTemplate(),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		var claim *resourcev1.ResourceClaim
		controllertest.Eventually(t, "the pod names its claim", func() bool {
			pod, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil || len(pod.Status.ResourceClaimStatuses) != 1 {
				return false
			}
			claim, err = claims.Get(t.Context(), *pod.Status.ResourceClaimStatuses[0].ResourceClaimName,
				metav1.GetOptions{})
			return err == nil
		})
		if len(claim.Spec.Devices.Requests) != 1 || len(claim.OwnerReferences) != 1 {
			t.Errorf("claim %+v", claim)
		}
		time.Sleep(time.Minute)
		if list, err := claims.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Fatalf("claims: %v, %v", list, err)
		}

		// As the scheduler does.
		pod, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Finalizers = []string{resourcev1.Finalizer}
		if claim, err = claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		claim.Status.Allocation = &resourcev1.AllocationResult{}
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{
			{Resource: "pods", Name: "p", UID: pod.UID}}
		if _, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod.Spec.NodeName = "n"
		if pod, err = pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if is, err := claims.Get(t.Context(), claim.Name, metav1.GetOptions{}); err != nil ||
			is.Status.Allocation == nil {
			t.Fatalf("a claim that is in use: %+v, %v", is, err)
		}

		pod.Status.Phase = corev1.PodSucceeded
		if _, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the claim is gone", func() bool {
			_, err := claims.Get(t.Context(), claim.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
}

// TestSharedClaim: a claim of the user's is deallocated after its last user, and stays.
func TestSharedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shared"}}
		allocated(shared)
		usedBy("uid-p", "uid-q")(shared)
		p, q := newPod(byName("shared"), placed), newPod(byName("shared"), placed)
		q.Name, q.UID = "q", "uid-q"
		c := start(t, shared, p, q)
		claims := c.Client.ResourceV1().ResourceClaims("ns")
		users := func(n int) func() bool {
			return func() bool {
				is, err := claims.Get(t.Context(), "shared", metav1.GetOptions{})
				return err == nil && len(is.Status.ReservedFor) == n && (is.Status.Allocation != nil) == (n > 0) &&
					len(is.Finalizers) == min(n, 1)
			}
		}
		time.Sleep(time.Hour)
		if !users(2)() {
			t.Error("users that run were taken away")
		}
		now := int64(0)
		for i, name := range []string{"p", "q"} {
			if err := c.Client.CoreV1().Pods("ns").Delete(t.Context(), name,
				metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				t.Fatal(err)
			}
			controllertest.Eventually(t, "one user less", users(1-i))
		}
	})
}

// TestALateInformerMakesNoClaimTwice: a leader before has made the claim of a pod, and the informer
// does not show it yet.
func TestALateInformerMakesNoClaimTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod()
		c := controllertest.New(t, newTemplate(), pod, newClaimOf(pod))
		c.Client.PrependReactor("list", "resourceclaims", func(a clienttesting.Action) (bool, kruntime.Object, error) {
			if a.GetNamespace() == "" { // the informer
				return true,
					&resourcev1.ResourceClaimList{ListMeta: metav1.ListMeta{ResourceVersion: controllertest.Beginning}},
					nil
			}
			return false, nil, nil
		})
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		claims := c.Client.ResourceV1().ResourceClaims("ns")
		there := func() []resourcev1.ResourceClaim {
			list, err := claims.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return list.Items
		}
		time.Sleep(time.Minute)
		if got := there(); len(got) != 1 {
			t.Fatalf("%d claims", len(got))
		}
		claim := &there()[0]
		claim.Labels = map[string]string{"seen": "now"}
		if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the pod names its claim", func() bool {
			pod, err := c.Client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
			return err == nil && len(pod.Status.ResourceClaimStatuses) == 1 &&
				*pod.Status.ResourceClaimStatuses[0].ResourceClaimName == "made"
		})
		if got := there(); len(got) != 1 {
			t.Errorf("%d claims", len(got))
		}
	})
}

// TestClaimOfAYoungerPod: the informer still shows the former pod of that name; the claim belongs
// to the new one.
func TestClaimOfAYoungerPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, before := newPod(named("made")), newPod()
		before.UID, before.ResourceVersion = "uid-before", "1"
		c := controllertest.New(t, newTemplate(), pod, newClaimOf(pod))
		c.Client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, kruntime.Object, error) {
			return true,
				&corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: controllertest.Beginning},
					Items: []corev1.Pod{*before}}, nil
		})
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		time.Sleep(time.Minute)
		if _, err := c.Client.ResourceV1().ResourceClaims("ns").Get(t.Context(), "made",
			metav1.GetOptions{}); err != nil {
			t.Errorf("the claim of the new pod: %v", err)
		}
	})
}
