package nodeauth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"
)

// ListPods returns the pods that are bound to a node, as of a moment after the call.
type ListPods func(ctx context.Context, node string) ([]*corev1.Pod, error)

const (
	// readsPerSecond and readsAtOnce bound how often the store is read for one node.
	readsPerSecond = 5
	readsAtOnce    = 25
	// budgetsKept is the number of nodes whose read budgets are kept: the most recent ones.
	budgetsKept = 4096
	// readWithin bounds one read.
	readWithin = 10 * time.Second
)

// newest reads the pods of nodes from the store. Requests of one node share reads, and there is one
// at a time.
type newest struct {
	list  ListPods
	reads singleflight.Group

	mu      sync.Mutex
	budgets *lru.Cache // of flowcontrol.PassiveRateLimiter, by node
}

func newNewest(list ListPods) *newest { return &newest{list: list, budgets: lru.New(budgetsKept)} }

// pods returns the pods of a node as of a moment after the call. It returns none for a node that
// has used up its reads: until it gets more, the informer alone decides.
func (n *newest) pods(ctx context.Context, node string) ([]*corev1.Pod, error) {
	// The first read that this call joins may have begun before it. The second has not.
	for fresh := false; ; fresh = true {
		own := false
		read := n.reads.DoChan(node, func() (any, error) {
			own = true
			return n.read(ctx, node)
		})
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case r := <-read:
			if r.Err != nil {
				return nil, fmt.Errorf("reading the pods of node %s: %w", node, r.Err)
			}
			if own || fresh {
				return r.Val.([]*corev1.Pod), nil
			}
		}
	}
}

func (n *newest) read(ctx context.Context, node string) ([]*corev1.Pod, error) {
	if !n.budget(node).TryAccept() {
		return nil, nil
	}
	// It is not only for the request that began it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin)
	defer cancel()
	return n.list(ctx, node)
}

// volume reads a volume for a node. It returns nil for one that is not there, and for a node that
// has used up its reads.
func (n *newest) volume(ctx context.Context, node, name string, read ReadVolume) (*corev1.PersistentVolume, error) {
	if !n.budget(node).TryAccept() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	volume, err := read(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("reading volume %s for node %s: %w", name, node, err)
	}
	return volume, nil
}

func (n *newest) budget(node string) flowcontrol.PassiveRateLimiter {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b, ok := n.budgets.Get(node); ok {
		return b.(flowcontrol.PassiveRateLimiter)
	}
	b := flowcontrol.NewTokenBucketPassiveRateLimiter(readsPerSecond, readsAtOnce)
	n.budgets.Add(node, b)
	return b
}
