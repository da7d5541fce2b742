package rootca_test

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/rootca"
)

const pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"

func TestEveryNamespaceHasTheCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		ctrl, err := rootca.New(rootca.Config{Informers: c.Informers, CA: bundle{pem}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		get := func() *corev1.ConfigMap {
			cm, err := c.Client.CoreV1().ConfigMaps("a").Get(t.Context(), rootca.Name, metav1.GetOptions{})
			if err != nil {
				return nil
			}
			return cm
		}
		right := func() bool { cm := get(); return cm != nil && len(cm.Data) == 1 && cm.Data["ca.crt"] == pem }
		controllertest.Eventually(t, "the ConfigMap", right)
		cm := get()
		cm.Data = map[string]string{"ca.crt": "forged", "more": "x"}
		if _, err := c.Client.CoreV1().ConfigMaps("a").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "a changed one is made right", right)
		if err := c.Client.CoreV1().ConfigMaps("a").Delete(t.Context(), rootca.Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "a deleted one is made anew", right)
		if _, err := rootca.New(rootca.Config{Informers: c.Informers, CA: bundle{"no"}}); err == nil {
			t.Error("nonsense was accepted as a CA")
		}
	})
}

// bundle is a CA that never changes.
type bundle struct{ text string }

func (b bundle) PEM() []byte              { return []byte(b.text) }
func (b bundle) Changed() <-chan struct{} { return nil }
