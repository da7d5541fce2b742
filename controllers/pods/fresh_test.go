package pods_test

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/pods"
)

// The informer is behind as long as the API server has the owner in another version, or a pod more, a newer one, or one less.
func TestBehind(t *testing.T) {
	owner := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rs"}}
	c := controllertest.New(t, owner)
	controller := true
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, Labels: map[string]string{"app": "x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: owner.UID, Controller: &controller}}}}
	}
	c.Add(pod("a"))
	there, err := c.Client.CoreV1().Pods("d").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown := []*corev1.Pod{there}
	live := owner.DeepCopy()
	list := &corev1.PodList{}
	c.Client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) { return true, list.DeepCopy(), nil })
	var asked int
	var fresh pods.Fresh
	behind := func(what string, want bool) {
		t.Helper()
		got, err := fresh.Behind(t.Context(), c.Client, claim.Owner{Object: owner, Selector: labels.SelectorFromSet(labels.Set{"app": "x"}),
			Read: func(context.Context) (metav1.Object, error) { asked++; return live, nil }}, shown)
		if err != nil || got != want {
			t.Errorf("%s: behind %t, %v", what, got, err)
		}
	}
	behind("a pod is gone", true)
	newer := shown[0].DeepCopy()
	newer.ResourceVersion = "999999"
	list.Items = []corev1.Pod{*newer}
	behind("a pod is newer", true)
	list.Items = []corev1.Pod{*shown[0], *pod("b")}
	behind("a pod is missing", true)
	list.Items = []corev1.Pod{*shown[0]}
	live.ResourceVersion = "999999"
	behind("the owner is newer", true)
	live.ResourceVersion = owner.ResourceVersion
	behind("all is shown", false)
	before := asked
	list.Items = nil
	behind("it is not asked again", false)
	if asked != before {
		t.Error("it was asked again")
	}
	fresh.Forget(owner.UID)
	behind("it is asked for another owner of that UID", true)
}
