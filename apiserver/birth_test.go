package apiserver

import (
	"context"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Work that starts after Prepare finds its rights and namespaces, and a server does not call
// itself ready before.
func TestBirth(t *testing.T) {
	c := startCluster(t)
	if code, body := c.raw(t, "/readyz", nil); code != http.StatusInternalServerError {
		t.Errorf("readyz before the birth: %d %s", code, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.Prepare(ctx, c.admin); err != nil {
		t.Fatal(err)
	}
	if code, body := c.raw(t, "/readyz", nil); code != http.StatusOK {
		t.Errorf("readyz after the birth: %d %s", code, body)
	}
	scheduler := kubernetes.NewForConfigOrDie(c.LoopbackConfigAs("system:kube-scheduler"))
	if _, err := scheduler.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("the scheduler after Prepare: %v", err)
	}
	if _, err := c.admin.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
