package volumeexpand

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// TestEvent: a claim gets one event for each requested size.
func TestEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
			Spec: corev1.PersistentVolumeClaimSpec{
				Resources: corev1.VolumeResourceRequirements{Requests: storage("1Gi")}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: storage("1Gi")},
		})
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		claims := c.Client.CoreV1().PersistentVolumeClaims("ns")
		told := func() (n int32) {
			list, err := c.Client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list.Items {
				if e.Reason == "ExternalExpanding" {
					n += e.Count
				}
			}
			return n
		}
		change := func(f func(*corev1.PersistentVolumeClaim)) {
			is, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			f(is)
			if _, err := claims.Update(t.Context(), is, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		change(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} })
		if n := told(); n != 0 {
			t.Errorf("told %d times before it wants more", n)
		}
		change(func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = storage("2Gi") })
		change(func(c *corev1.PersistentVolumeClaim) { c.Labels = nil })
		if n := told(); n != 1 {
			t.Errorf("told %d times, want once", n)
		}
		change(func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = storage("3Gi") })
		if n := told(); n != 2 {
			t.Errorf("told %d times, want twice", n)
		}
	})
}
