package apiserver

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Work that starts after Prepare finds its rights and namespaces, and a server is not ready before.
func TestBootstrap(t *testing.T) {
	c := startCluster(t)
	if code, body := c.raw(t, "/readyz", nil); code != http.StatusInternalServerError {
		t.Errorf("readyz before the bootstrap: %d %s", code, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Prepare(ctx, c.admin); err != nil {
		t.Fatal(err)
	}
	if code, body := c.raw(t, "/readyz", nil); code != http.StatusOK {
		t.Errorf("readyz after the bootstrap: %d %s", code, body)
	}
	scheduler := kubernetes.NewForConfigOrDie(c.LoopbackConfigAs("system:kube-scheduler"))
	if _, err := scheduler.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("the scheduler after Prepare: %v", err)
	}
	if _, err := c.admin.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// A readiness check of a server that starts is answered that it is not ready, and not that it is
// forbidden. The roles that allow it are there already, as for a server that joins.
func TestReadinessIsNeverForbidden(t *testing.T) {
	first := startCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := first.Prepare(ctx, first.admin); err != nil {
		t.Fatal(err)
	}
	answers := map[int]int{}
	var asking sync.WaitGroup
	startCluster(t, func(c *Config) {
		c.Store = first.cfg.Store
		url := "https://" + c.Listener.Addr().String() + "/readyz"
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		asking.Go(func() { // from before it serves
			defer client.CloseIdleConnections()
			for answers[http.StatusOK] == 0 && ctx.Err() == nil {
				r, err := client.Get(url)
				if err != nil {
					t.Error(err)
					return
				}
				r.Body.Close()
				answers[r.StatusCode]++
			}
		})
	})
	asking.Wait()
	if answers[http.StatusForbidden] > 0 || answers[http.StatusOK] == 0 {
		t.Errorf("answers by code: %v", answers)
	}
}
