package apiserver

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestAKubeletActsOnABindingAtOnce: a kubelet may use the objects that a pod refers to from the
// moment of the binding, however far behind the authorizer's informer is.
func TestAKubeletActsOnABindingAtOnce(t *testing.T) {
	c, ctx := startCluster(t), t.Context()
	must(0, c.ensure(ctx, c.client))(t)
	must(c.admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	kubelet := kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, subject("system:node:n1", "system:nodes"))).CoreV1()
	for i := range 30 {
		const name = "again" // as StatefulSets do
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podSpec()}
		pod = must(c.admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}))(t)
		must(0, c.admin.CoreV1().Pods("default").Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"},
		}, metav1.CreateOptions{}))(t)
		if i%2 == 0 {
			must(kubelet.Pods("default").Get(ctx, name, metav1.GetOptions{}))(t)
		}
		must(kubelet.ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID},
		}}, metav1.CreateOptions{}))(t)
		zero := int64(0)
		must(0, c.admin.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))(t)
	}
}
