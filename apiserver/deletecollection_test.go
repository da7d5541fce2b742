package apiserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// together is a backend whose deletions of one kind wait until so many of them have come.
type together struct {
	storage.Backend
	of   string // a part of their keys
	want int

	mu   sync.Mutex
	come int
	all  chan struct{}
}

// Commit implements storage.Backend.
func (b *together) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	if op := txn.Ops[0]; op.Kind == raftstore.Delete && strings.Contains(op.Key, b.of) {
		b.mu.Lock()
		if b.come++; b.come == b.want {
			close(b.all)
		}
		b.mu.Unlock()
		select {
		case <-b.all:
		case <-ctx.Done():
			return raftstore.Result{}, context.Cause(ctx)
		}
	}
	return b.Backend.Commit(ctx, txn)
}

// TestDeleteCollectionIsNotSerial: the objects of a collection do not wait for each other's commit.
func TestDeleteCollectionIsNotSerial(t *testing.T) {
	backend := &together{of: "/configmaps/default/many-", want: 8, all: make(chan struct{})}
	c := startCluster(t, func(cfg *Config) {
		backend.Backend, cfg.Store = cfg.Store, backend
		cfg.RequestTimeout = time.Minute // for one that hangs
	})
	must(0, c.ensure(t.Context(), c.client))(t)
	maps := c.admin.CoreV1().ConfigMaps("default")
	for i := range 2 * backend.want {
		m := configMap(fmt.Sprintf("many-%d", i), nil)
		m.Labels = map[string]string{"many": "yes"}
		must(maps.Create(t.Context(), m, metav1.CreateOptions{}))(t)
	}
	must(0, maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "many=yes"}))(
		t)
	if left := must(maps.List(t.Context(), metav1.ListOptions{LabelSelector: "many=yes"}))(t); len(left.Items) != 0 {
		t.Errorf("%d are left", len(left.Items))
	}
}
