package clustertest

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// A healthy idle cluster writes nothing for a minute, which is longer than anything that repeats itself but for
// hourly work; and its servers hold the same state. Pods run meanwhile, the leases of nodes are read and watched, and
// a backup has been made. It does not run beside clusters of other tests: on a busy machine a node would be late now and
// then, which is written.
func TestIdleClusterWritesNothing(t *testing.T) {
	c := sharedCluster(t)
	s := NewSpace(t, c)
	s.Apply(hello("idle", 3, "none"))
	s.K("rollout", "status", "deployment/idle", "--timeout=60s")
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := kubernetes.NewForConfig(config) // c.Client has a timeout, which ends its watches, too
	if err != nil {
		t.Fatal(err)
	}
	renewals, err := watcher.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer renewals.Stop()
	told := 0
	meanwhile := func(ctx context.Context) error {
		for more := true; more; {
			select {
			case e, open := <-renewals.ResultChan():
				if !open || e.Type == watch.Error {
					t.Fatalf("the watch of leases has ended after %d renewals: %+v", told, e.Object)
				}
				told++
			default:
				more = false
			}
		}
		list, err := c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 3 {
			return fmt.Errorf("%d leases of nodes", len(list.Items))
		}
		return nil
	}
	c.Barque(t, "snapshot", "save", filepath.Join(t.TempDir(), "idle.backup"))
	// What the tests before have left to be cleaned up may take a while, and a busy machine may write that a node was late.
	if err := c.idles(t.Context(), 4*time.Minute, time.Minute, meanwhile); err != nil {
		t.Fatal(err)
	}
	if told < 3*5 {
		t.Errorf("a watch was told of %d renewals in a minute of three nodes", told)
	}
}

// idles waits until nothing was written for some time, with something else done now and then.
func (c *Cluster) idles(ctx context.Context, patience, idle time.Duration, meanwhile func(context.Context) error) error {
	var since time.Time
	var revision uint64
	return Poll(ctx, patience, func(ctx context.Context) error {
		if meanwhile != nil {
			if err := meanwhile(ctx); err != nil {
				return err
			}
		}
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		hash := ""
		for _, m := range s.Members {
			if m.Role != "server" {
				continue
			}
			if m.Store != nil && hash == "" {
				hash = m.Store.Hash
			}
			if m.Store == nil || m.Store.Revision != s.Revision || m.Store.Hash != hash {
				since = time.Time{}
				return fmt.Errorf("the servers differ: %+v", s.Members)
			}
		}
		if s.Revision != revision || since.IsZero() {
			revision, since = s.Revision, time.Now()
		}
		if quiet := time.Since(since); quiet < idle {
			return fmt.Errorf("nothing was written for %s only, at revision %d", quiet, revision)
		}
		return nil
	})
}
