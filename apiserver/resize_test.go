package apiserver

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testResize binds a pod in the older way, and changes its resources.
func testResize(t *testing.T, c *cluster) {
	ctx, pods := t.Context(), c.admin.CoreV1().Pods("resize")
	must(
		c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "resize"}},
			metav1.CreateOptions{}))(t)
	must(
		c.admin.CoreV1().ServiceAccounts("resize").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
		corev1.ResourceMemory: resource.MustParse("1Gi")}
	must(
		c.admin.CoreV1().Nodes().Create(ctx,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "resize"}, Status: corev1.NodeStatus{Allocatable: room}},
			metav1.CreateOptions{}))(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	must(pods.Create(ctx, pod, metav1.CreateOptions{}))(t)

	bind := func(name string) error {
		return c.admin.CoreV1().RESTClient().Post().Namespace("resize").Resource("bindings").
			Body(
				&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name},
					Target: corev1.ObjectReference{Kind: "Node", Name: "resize"}}).Do(ctx).Error()
	}
	if err := bind("p"); err != nil {
		t.Fatalf("binding: %v", err)
	}
	if err := bind("p"); !apierrors.IsConflict(err) {
		t.Errorf("binding twice: %v", err)
	}
	if err := bind("other"); !apierrors.IsNotFound(err) {
		t.Errorf("binding no pod: %v", err)
	}

	pod = must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("200m")
	pod.Spec.Containers[0].Image, pod.Labels, pod.Status.Phase = "other", map[string]string{"a": "b"}, corev1.PodFailed
	var resized *corev1.Pod
	eventually(t, "the server knows the node", func(ctx context.Context) (err error) {
		resized, err = pods.UpdateResize(ctx, "p", pod, metav1.UpdateOptions{})
		return err
	})
	if got := resized.Spec.Containers[0]; resized.Spec.NodeName != "resize" ||
		got.Resources.Requests.Cpu().String() != "200m" || got.Image != "nginx:1.21.6" {
		t.Errorf("on %q, resized to %+v", resized.Spec.NodeName, got)
	}
	if resized.Generation != pod.Generation+1 || len(resized.Labels) > 0 || resized.Status.Phase != corev1.PodPending {
		t.Errorf("generation %d, labels %v, phase %s", resized.Generation, resized.Labels, resized.Status.Phase)
	}
	resized.Spec.Containers[0].Resources.Requests = nil
	if _, err := pods.UpdateResize(ctx, "p", resized, metav1.UpdateOptions{}); !slices.Contains(causes(err),
		"FieldValueForbidden spec.containers[0].resources.requests") {
		t.Errorf("taking the request away: %v", err)
	}
	pod.ResourceVersion = ""
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("300m")
	if _, err := pods.Update(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("resized by a write to the pod: %v", err)
	}
}

func testComponents(t *testing.T, c *cluster) {
	if list := must(c.admin.CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{}))(t); len(
		list.Items) != 0 {
		t.Errorf("components without checks: %v", list.Items)
	}
	if _, err := c.admin.CoreV1().ComponentStatuses().Get(t.Context(), "none",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a component that is not there: %v", err)
	}
}
