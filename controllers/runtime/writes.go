package runtime

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Writes remembers, per key, what the last reconcile wrote, until the informers show it. A key
// with unseen writes is not reconciled: it would decide on a view of before its own acts, and
// for instance create the same pods again. There is no counting and no timeout: a write is seen
// when the informer's store has reached its resourceVersion (they are comparable: KEP-5504), a
// deletion when the object is gone or going.
type Writes struct {
	mu      sync.Mutex
	pending map[Key]*unseen
}

type unseen struct {
	checks []func() bool
	wait   time.Duration
}

// NewWrites makes an empty memory. It belongs to one term.
func NewWrites() *Writes { return &Writes{pending: map[Key]*unseen{}} }

// Wrote notes that reconciling key wrote an object that informer holds, at resourceVersion.
func (w *Writes) Wrote(key Key, informer cache.SharedIndexInformer, resourceVersion string) {
	w.add(key, func() bool { return Reached(informer, resourceVersion) })
}

// Deleted notes that reconciling key asked for the deletion of the object of that name and UID.
func (w *Writes) Deleted(key Key, informer cache.SharedIndexInformer, object Key, uid types.UID) {
	w.add(key, func() bool {
		obj, exists, err := informer.GetIndexer().GetByKey(object.String())
		if err != nil || !exists {
			return true
		}
		meta, ok := obj.(metav1.Object)
		return !ok || meta.GetUID() != uid || meta.GetDeletionTimestamp() != nil
	})
}

func (w *Writes) add(key Key, seen func() bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.pending[key]
	if u == nil {
		u = &unseen{wait: minSettle}
		w.pending[key] = u
	}
	u.checks = append(u.checks, seen)
}

// settled reports whether all writes of key have been seen, else how long to wait before asking
// again.
func (w *Writes) settled(key Key) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.pending[key]
	if u == nil {
		return 0, true
	}
	for len(u.checks) > 0 && u.checks[0]() {
		u.checks = u.checks[1:]
	}
	if len(u.checks) == 0 {
		delete(w.pending, key)
		return 0, true
	}
	wait := u.wait
	u.wait = min(2*u.wait, maxSettle)
	return wait, false
}

// Older reports whether a resourceVersion is of before another one. Those that cannot be compared
// are not.
func Older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// Reached reports whether the informer's store reflects resourceVersion.
func Reached(informer cache.SharedIndexInformer, resourceVersion string) bool {
	at := informer.GetStore().LastStoreSyncResourceVersion()
	order, err := resourceversion.CompareResourceVersion(at, resourceVersion)
	return err == nil && order >= 0
}
