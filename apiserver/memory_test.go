package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/apiserver/podparts"
)

type aged int

func (a *aged) Age() { *a++ }

func TestCachesAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var first, second aged
		go age(ctx, []ager{&first, &second})
		time.Sleep(3*cacheAge + time.Second)
		synctest.Wait()
		if stop(); first != 4 || second != 4 { // once at the start
			t.Errorf("they were aged %d and %d times, want 4", first, second)
		}
	})
}

// TestInformersKeepLess: without managedFields, and with one copy of the common parts of pods.
func TestInformersKeepLess(t *testing.T) {
	transform := slim(podparts.New(podParts))
	pod := func(name string) *corev1.Pod {
		out, err := transform(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"serve"}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.(*corev1.Pod)
	}
	first, second := pod("a"), pod("b")
	if first.ManagedFields != nil || second.Name != "b" {
		t.Errorf("they have become %+v and %+v", first, second)
	}
	if &first.Spec.Containers[0].Command[0] != &second.Spec.Containers[0].Command[0] {
		t.Error("each has a copy of its command")
	}
	tombstone := cache.DeletedFinalStateUnknown{Key: "a", Obj: first}
	if out, err := transform(tombstone); err != nil || out != tombstone {
		t.Errorf("a deletion that was missed: %v, %v", out, err)
	}
}
