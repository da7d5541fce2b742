package serviceaccount_test

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/serviceaccount"
)

func TestEveryNamespaceHasItsDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		now := metav1.Now()
		c.Add(
			&corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: "going", DeletionTimestamp: &now, Finalizers: []string{"x/y"}}})
		ctrl, err := serviceaccount.New(serviceaccount.Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		has := func(namespace string) bool {
			_, err := c.Client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		}
		controllertest.Eventually(t, "an existing namespace", func() bool { return has("a") })
		if _, err := c.Client.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "a new namespace", func() bool { return has("b") })
		if err := c.Client.CoreV1().ServiceAccounts("b").Delete(t.Context(), "default",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "a deleted account", func() bool { return has("b") })
		if has("going") {
			t.Error("a namespace that is being deleted got one")
		}
	})
}
