package controllertest

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Events between an informer's list and its watch are not lost, and a watcher may be slow.
func TestWatchFromListing(t *testing.T) {
	c := New(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "was"}})
	client := c.Client.CoreV1().ConfigMaps("a")
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	watching := func(ns string) watch.Interface {
		t.Helper()
		w, err := c.Client.CoreV1().ConfigMaps(ns).Watch(t.Context(),
			metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	create := func(ns, name string) {
		t.Helper()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.Client.CoreV1().ConfigMaps(ns).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Delete(t.Context(), "was", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	const many = 300
	for i := range many {
		create("a", fmt.Sprint("m", i))
	}
	create("b", "other")
	w := watching("a")
	for event := range w.ResultChan() {
		if event.Type == watch.Deleted {
			break
		}
	}
	for i := range many {
		if event := <-w.ResultChan(); event.Type != watch.Added ||
			event.Object.(*corev1.ConfigMap).Name != fmt.Sprint("m", i) {
			t.Fatalf("event %d: %v", i, event)
		}
	}
	if event := <-watching("b").ResultChan(); event.Object.(*corev1.ConfigMap).Name != "other" {
		t.Errorf("the first event of namespace b: %v", event)
	}
}
