package apiserver

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/gatewayauth"
)

// TestAKubeletActsOnABindingAtOnce: a kubelet may use the objects that a pod refers to from the
// moment of the binding, however far behind the authorizer's informer is.
func TestAKubeletActsOnABindingAtOnce(t *testing.T) {
	c, ctx := startCluster(t), t.Context()
	must(0, c.ensure(ctx, c.client))(t)
	must(
		c.admin.CoreV1().ServiceAccounts("default").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
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
		must(
			kubelet.ServiceAccounts("default").CreateToken(ctx, "default",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
					BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name,
						UID: pod.UID},
				}}, metav1.CreateOptions{}))(t)
		zero := int64(0)
		must(0, c.admin.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))(t)
	}
}

// TestTokensOfTheGateway: a node gets a token of the gateway's account for the API server, bound to
// its own Node, and no other one.
func TestTokensOfTheGateway(t *testing.T) {
	c, ctx := startCluster(t), t.Context()
	must(0, c.ensure(ctx, c.client))(t)
	account := gatewayauth.Account
	if _, err := c.admin.CoreV1().ServiceAccounts(account.Namespace).Get(ctx, account.Name,
		metav1.GetOptions{}); apierrors.IsNotFound(err) {
		must(
			c.admin.CoreV1().ServiceAccounts(account.Namespace).Create(ctx,
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account.Name}}, metav1.CreateOptions{}))(t)
	}
	uids := map[string]types.UID{}
	for _, name := range []string{"n1", "n2"} {
		uids[name] = must(
			c.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.CreateOptions{}))(t).UID
	}
	accounts := kubernetes.NewForConfigOrDie(
		c.ca.client(t, c.host, subject("system:node:n1", "system:nodes"))).CoreV1().ServiceAccounts(account.Namespace)
	seconds := ptr.To[int64](3600)
	request := func(kind, node string, audiences ...string) error {
		_, err := accounts.CreateToken(ctx, account.Name,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				Audiences: audiences, ExpirationSeconds: seconds,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: node,
					UID: uids[node]},
			}}, metav1.CreateOptions{})
		return err
	}
	if err := request("Node", "n1"); err != nil {
		t.Errorf("a token of the gateway for its own Node: %v", err)
	}
	hour := seconds
	seconds = nil
	if err := request("Node", "n1"); err != nil {
		t.Errorf("a token of the gateway for no stated time: %v", err)
	}
	seconds = ptr.To[int64](86400)
	forADay := request("Node", "n1")
	seconds = hour
	for what, err := range map[string]error{
		"for a day":            forADay,
		"of another Node":      request("Node", "n2"),
		"for another audience": request("Node", "n1", "vault"),
		"bound to a pod":       request("Pod", "n1"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("a token of the gateway %s: %v, want Forbidden", what, err)
		}
	}
}
