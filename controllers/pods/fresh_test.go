package pods_test

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/pods"
)

// informer is one that has come to a resourceVersion.
type informer struct {
	cache.SharedIndexInformer
	cache.Store
	at    string
	items []any
}

func (i *informer) GetStore() cache.Store                { return i }
func (i *informer) List() []any                          { return i.items }
func (i *informer) LastStoreSyncResourceVersion() string { return i.at }

// view has a call of Fresh and the API server's answers.
type view struct {
	t           *testing.T
	c           *controllertest.Cluster
	informer    informer
	owner, live *appsv1.ReplicaSet
	list        corev1.PodList
	asked       int
	fresh       pods.Fresh
}

func newView(t *testing.T) *view {
	owner := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rs"}}
	v := &view{t: t, c: controllertest.New(t, owner), informer: informer{at: "10"}, owner: owner}
	owner.ResourceVersion = "10"
	v.live = owner.DeepCopy()
	v.c.Client.PrependReactor("list", "pods",
		func(clienttesting.Action) (bool, kruntime.Object, error) { return true, v.list.DeepCopy(), nil })
	return v
}

func (v *view) pod(name, version string) *corev1.Pod {
	controller := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name), ResourceVersion: version,
			Labels: map[string]string{"app": "x"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: v.owner.UID, Controller: &controller}}}}
}

func (v *view) has(pods ...*corev1.Pod) {
	v.list.Items = nil
	for _, pod := range pods {
		v.list.Items = append(v.list.Items, *pod)
	}
}

func (v *view) behind(what string, want bool, shown ...*corev1.Pod) {
	v.t.Helper()
	got, err := v.fresh.Behind(v.t.Context(), v.c.Client, &v.informer,
		claim.Owner{Object: v.owner, Selector: labels.SelectorFromSet(labels.Set{"app": "x"}),
			Read: func(context.Context) (metav1.Object, error) { v.asked++; return v.live.DeepCopy(), nil }}, shown)
	if err != nil || got != want {
		v.t.Errorf("%s: behind %t, %v", what, got, err)
	}
}

// The informer is behind when the API server has another version of the owner, another pod, a newer
// pod, or one pod less.
func TestBehind(t *testing.T) {
	v := newView(t)
	a, b := v.pod("a", "9"), v.pod("b", "9")
	again := func() { v.fresh.Forget(v.owner.UID) }
	v.behind("a pod is gone", true, a)
	again()
	v.has(v.pod("a", "12"))
	v.behind("a pod is newer", true, a)
	again()
	v.has(a, b)
	v.behind("a pod is missing", true, a)
	again()
	v.has(a)
	v.live.ResourceVersion = "12"
	v.behind("the owner is newer", true, a)
	again()
	v.live.ResourceVersion = "10"
	v.behind("all is shown", false, a)
	before := v.asked
	v.has()
	v.behind("it is not asked again", false, a)
	if v.asked != before {
		t.Error("it was asked again")
	}
	again()
	v.behind("it is asked for another owner of that UID", true, a)
}

// The informer is behind until it has shown the API server's answer, however many pods change
// meanwhile. A decision from before is not acted on.
func TestBehindEnds(t *testing.T) {
	v := newView(t)
	a, b, c := v.pod("a", "9"), v.pod("b", "12"), v.pod("c", "8")
	v.has(a, b)
	v.behind("one is missing, and one is gone", true, a, c)
	v.has(v.pod("a", "14"), v.pod("b", "15"), v.pod("d", "16"))
	v.live.ResourceVersion = "17"
	v.informer.at = "11"
	v.behind("one is missing still", true, a, c)
	v.informer.at = "12"
	v.behind("the decision may be of before", true, a, c)
	v.behind("one is gone", true, a, b, c)
	v.behind("all that was there is shown", false, a, b)
	if v.asked != 1 {
		t.Errorf("asked %d times", v.asked)
	}
}

// A pod that has ended before the informer shows it is not waited for.
func TestBehindOfAShortPod(t *testing.T) {
	v := newView(t)
	v.has(v.pod("b", "12"))
	v.behind("one is missing", true)
	v.informer.at = "13"
	v.behind("the decision may be of before", true)
	v.behind("it came and went", false)
	v.fresh.Forget(v.owner.UID)
	v.has()
	v.live.ResourceVersion = "12"
	v.behind("the owner is newer", true)
	v.owner.ResourceVersion = "13"
	v.behind("it is newer still", false)
}

// An owner that is newer than the term is not read from the API. An older one is, and so is every
// owner while the informer may lack some of the older ones.
func TestOwnersOfThisTerm(t *testing.T) {
	v := newView(t)
	a := v.pod("a", "9")
	v.has(a)
	owners := &informer{at: "19", items: []any{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{UID: "older"}}}}
	refused, newest := errors.New("refused"), 0
	v.fresh.Owners = owners
	v.fresh.Newest = func(context.Context) (string, error) {
		if newest++; newest == 1 {
			return "", refused
		}
		return "20", nil
	}
	ask := func(uid types.UID) (bool, int, error) {
		owner, before := v.owner.DeepCopy(), v.asked
		owner.UID = uid
		got, err := v.fresh.Behind(t.Context(), v.c.Client, &v.informer,
			claim.Owner{Object: owner, Selector: labels.Everything(),
				Read: func(context.Context) (metav1.Object, error) { v.asked++; return owner, nil }}, []*corev1.Pod{a})
		return got, v.asked - before, err
	}
	if _, asked, err := ask("new"); !errors.Is(err, refused) || asked != 0 {
		t.Errorf("the newest revision is not known: asked %d times, %v", asked, err)
	}
	if _, asked, err := ask("new"); err != nil || asked != 1 {
		t.Errorf("the informer may lack owners of before: asked %d times, %v", asked, err)
	}
	owners.at = "20"
	if behind, asked, err := ask("newer"); err != nil || asked != 0 || behind {
		t.Errorf("an owner of this term: asked %d times, behind %t, %v", asked, behind, err)
	}
	if behind, asked, err := ask("older"); err != nil || asked != 1 || !behind {
		t.Errorf("an owner of before: asked %d times, behind %t, %v", asked, behind, err)
	}
	owners.items = append(owners.items, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{UID: "newest"}})
	if _, asked, err := ask("newest"); err != nil || asked != 0 {
		t.Errorf("an owner that the informer shows later: asked %d times, %v", asked, err)
	}
	if newest != 2 {
		t.Errorf("the newest revision was asked for %d times", newest)
	}
}
