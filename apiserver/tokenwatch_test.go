package apiserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// TestWatchesEndWithTheirPods: a watch with the token of a pod ends when the pod is deleted. That
// of another pod goes on, and so do those inside the process.
func TestWatchesEndWithTheirPods(t *testing.T) {
	c := startCluster(t)
	ctx := t.Context()
	must(
		c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "watched"}},
			metav1.CreateOptions{}))(t)
	must(
		c.admin.CoreV1().ServiceAccounts("watched").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}))(t)
	must(c.admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "watcher"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"watch"}}}},
		metav1.CreateOptions{}))(t)
	must(
		c.admin.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "robot"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "watcher"},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "watched", Name: "robot"}}},
			metav1.CreateOptions{}))(t)
	open := func(name string) *bufio.Scanner {
		pod := must(c.admin.CoreV1().Pods("watched").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{ServiceAccountName: "robot", Containers: []corev1.Container{{Name: "c", Image: "c"}}}},
			metav1.CreateOptions{}))(t)
		token := must(
			c.admin.CoreV1().ServiceAccounts("watched").CreateToken(ctx, "robot",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
					BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name,
						UID: pod.UID},
				}}, metav1.CreateOptions{}))(t)
		client := kubernetes.NewForConfigOrDie(
			&restclient.Config{Host: c.host, BearerToken: token.Status.Token,
				TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
		var stream io.ReadCloser
		eventually(t, "a watch of "+name, func(context.Context) (err error) { // its rights are seen a little later
			stream, err = client.CoreV1().RESTClient().Get().Namespace("watched").Resource("configmaps").
				VersionedParams(&metav1.ListOptions{Watch: true}, scheme.ParameterCodec).Stream(ctx)
			return err
		})
		t.Cleanup(func() { stream.Close() })
		return bufio.NewScanner(stream)
	}
	first, second := open("first"), open("second")
	c.lasting[0].LookAtTokens(ctx)
	if err := c.admin.CoreV1().Pods("watched").Delete(ctx, "first",
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server knows of the deletion", func(context.Context) error {
		if _, err := c.informers.Core().V1().Pods().Lister().Pods("watched").Get("first"); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	c.lasting[0].LookAtTokens(ctx)
	ended := make(chan error, 1)
	go func() { // ends with the stream
		for first.Scan() {
		}
		ended <- first.Err()
	}()
	eventually(t, "the watch of the deleted pod ends", func(context.Context) error {
		select {
		case <-ended:
			return nil
		default:
			return errors.New("it goes on")
		}
	})
	must(
		c.admin.CoreV1().ConfigMaps("watched").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "afterwards"}}, metav1.CreateOptions{}))(t)
	for second.Scan() {
		if strings.Contains(second.Text(), "afterwards") {
			return
		}
	}
	t.Errorf("the watch of another pod has ended: %v", second.Err())
}
