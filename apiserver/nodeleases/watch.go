package nodeleases

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Watch implements rest.Watcher.
func (s *Storage) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	if options == nil {
		options = &metainternalversion.ListOptions{}
	}
	which := scopeOf(ctx)
	if which == stored {
		return s.Storage.Watch(ctx, options)
	}
	w := &watcher{
		storage: s, ctx: onNodes(ctx), options: forNodes(options), match: s.matching(options), bookmarks: options.AllowWatchBookmarks,
		result: make(chan watch.Event), done: make(chan struct{}), told: map[string]time.Time{}, beginnings: 1,
	}
	w.position, _ = strconv.ParseUint(options.ResourceVersion, 10, 64) // checked by those who get it below
	w.ofNodes = w.position
	w.options.AllowWatchBookmarks = true // they tell how far this has come
	var err error
	if w.nodes, err = s.nodes().Watch(w.ctx, w.options); err != nil {
		return nil, err
	}
	if which == both {
		o := *options
		o.AllowWatchBookmarks = true
		if w.stored, err = s.Storage.Watch(ctx, &o); err != nil {
			w.nodes.Stop()
			return nil, err
		}
		w.beginnings++
	}
	go w.run() // ends with Stop, which the server calls for every watch, or with what it is made from
	return w, nil
}

// watcher makes one watch out of one of nodes, one of stored leases if these are wanted, and the time.
type watcher struct {
	storage   *Storage
	ctx       context.Context // of the request, on nodes
	options   *metainternalversion.ListOptions
	match     storage.SelectionPredicate
	bookmarks bool // the client wants them

	nodes, stored watch.Interface // stored may be nil

	result chan watch.Event
	done   chan struct{}
	stop   sync.Once

	// What follows belongs to run.

	position   uint64               // the revision up to which everything was told; what is told of nodes carries it
	ofNodes    uint64               // the same of nodes alone
	told       map[string]time.Time // the renewal that was last told, by node
	beginnings int                  // how many of the two have not told all that was there at the beginning
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.stop.Do(func() { close(w.done) }) }

func (w *watcher) run() {
	defer close(w.result)
	defer w.nodes.Stop()
	var stored <-chan watch.Event
	if w.stored != nil {
		defer w.stored.Stop()
		stored = w.stored.ResultChan()
	}
	renewal := time.NewTimer(w.untilRenewal())
	defer renewal.Stop()
	for goOn := true; goOn; {
		select {
		case e, open := <-stored:
			goOn = open && w.fromStored(e)
		case e, open := <-w.nodes.ResultChan():
			goOn = open && w.fromNodes(e)
		case <-renewal.C:
			goOn = w.renew()
			renewal.Reset(w.untilRenewal())
		case <-w.done:
			return
		}
	}
}

// untilRenewal is the time until the leases of all nodes that live are renewed.
func (w *watcher) untilRenewal() time.Duration {
	now := w.storage.now()
	return now.Truncate(RenewEvery).Add(RenewEvery).Sub(now)
}

func (w *watcher) send(e watch.Event) bool {
	select {
	case w.result <- e:
		return true
	case <-w.done:
		return false
	}
}

// fail tells the client that the watch cannot go on.
func (w *watcher) fail(err error) bool {
	status := apierrors.NewInternalError(err).Status()
	w.send(watch.Event{Type: watch.Error, Object: &status})
	return false
}

func (w *watcher) fromStored(e watch.Event) bool {
	if e.Type == watch.Error {
		w.send(e)
		return false
	}
	revision, begun, err := read(e)
	if err != nil {
		return w.fail(err)
	}
	w.position = max(w.position, revision)
	switch {
	case begun:
		return w.begun()
	case e.Type == watch.Bookmark && !w.bookmarks:
		return true
	}
	return w.send(e)
}

func (w *watcher) fromNodes(e watch.Event) bool {
	if e.Type == watch.Error {
		w.send(e)
		return false
	}
	revision, begun, err := read(e)
	if err != nil {
		return w.fail(err)
	}
	w.ofNodes = max(w.ofNodes, revision)
	if w.stored == nil {
		w.position = w.ofNodes
	}
	switch {
	case begun:
		return w.begun()
	case e.Type == watch.Bookmark && (w.stored != nil || !w.bookmarks):
		return true
	case e.Type == watch.Bookmark:
		return w.bookmark(nil)
	}
	if cached, ok := e.Object.(runtime.CacheableObject); ok {
		e.Object = cached.GetObject()
	}
	node, ok := e.Object.(*corev1.Node)
	if !ok {
		return w.fail(fmt.Errorf("watching nodes gave a %T", e.Object))
	}
	return w.tell(e.Type, node)
}

// read returns the revision of an event, and whether it ends what was there at the beginning.
func read(e watch.Event) (revision uint64, begun bool, err error) {
	m, err := meta.Accessor(e.Object)
	if err != nil {
		return 0, false, fmt.Errorf("watching leases gave a %T: %w", e.Object, err)
	}
	revision, err = strconv.ParseUint(m.GetResourceVersion(), 10, 64)
	return revision, e.Type == watch.Bookmark && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true", err
}

// begun tells, once both have said so, that all that was there at the beginning was told.
func (w *watcher) begun() bool {
	if w.beginnings--; w.beginnings > 0 {
		return true
	}
	return w.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

func (w *watcher) bookmark(annotations map[string]string) bool {
	return w.send(watch.Event{Type: watch.Bookmark, Object: &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: w.revision(), Annotations: annotations},
	}})
}

// revision is what the next event carries. While there is no position, because the client gave none, it is
// that of the nodes, as it is in any watch that begins so.
func (w *watcher) revision() string { return strconv.FormatUint(cmp.Or(w.position, w.ofNodes), 10) }

// tell passes on what became of a node, if it changes the lease.
func (w *watcher) tell(what watch.EventType, node *corev1.Node) bool {
	lease := w.storage.lease(node, w.revision())
	switch ok, err := w.match.Matches(lease); {
	case err != nil:
		return w.fail(err)
	case !ok:
		return true
	}
	var renewed time.Time
	if lease.Spec.RenewTime != nil {
		renewed = lease.Spec.RenewTime.Time
	}
	before, known := w.told[node.Name]
	switch {
	case what == watch.Deleted:
		delete(w.told, node.Name)
	case what == watch.Modified && known && before.Equal(renewed):
		return true
	default:
		w.told[node.Name] = renewed
	}
	return w.send(watch.Event{Type: what, Object: lease})
}

// renew tells of all leases that were renewed. A node whose newest version was not told yet waits for
// that: the list is read from the cache that also feeds the watch, and may be ahead of it.
func (w *watcher) renew() bool {
	o := *w.options
	o.ResourceVersion, o.ResourceVersionMatch, o.AllowWatchBookmarks, o.SendInitialEvents, o.TimeoutSeconds = "0", "", false, nil, nil
	found, err := w.storage.nodes().List(w.ctx, &o)
	nodes, ok := found.(*corev1.NodeList)
	if err != nil || !ok {
		return true // nothing is lost: the next one tells the same, and the watch of nodes knows what is wrong
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if revision, err := strconv.ParseUint(node.ResourceVersion, 10, 64); err != nil || revision > w.ofNodes {
			continue
		}
		if !w.tell(watch.Modified, node) {
			return false
		}
	}
	return true
}
