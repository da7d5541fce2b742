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
	if which == ofNodes {
		w.nodes, err = s.nodes().Watch(w.ctx, w.options)
	} else {
		w.nodes, err = s.nodes().WatchStore(w.ctx, w.options)
	}
	if err != nil {
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
//
// The two watches run apart. A client that has seen the revision of a stored lease takes the watch up there, so that
// one is held until the watch of nodes has come as far.
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
	held       *update              // of stored leases; nothing more is taken from there meanwhile
	told       map[string]time.Time // the renewal that was last told, by node
	beginnings int                  // how many of the two have not told all that was there at the beginning
}

// update is an event of one of the watches.
type update struct {
	watch.Event
	revision uint64
	begun    bool // it ends what was there at the beginning
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
		next := stored
		if w.held != nil {
			next = nil
		}
		select {
		case e, open := <-next:
			goOn = open && w.take(e, w.fromStored)
		case e, open := <-w.nodes.ResultChan():
			goOn = open && w.take(e, w.fromNodes)
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

// take reads an event of one of the watches and hands it on. An error ends both.
func (w *watcher) take(e watch.Event, handle func(update) bool) bool {
	if e.Type == watch.Error {
		w.send(e)
		return false
	}
	m, err := meta.Accessor(e.Object)
	if err != nil {
		return w.fail(fmt.Errorf("watching leases gave a %T: %w", e.Object, err))
	}
	u := update{Event: e, begun: e.Type == watch.Bookmark && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"}
	if u.revision, err = strconv.ParseUint(m.GetResourceVersion(), 10, 64); err != nil {
		return w.fail(fmt.Errorf("watching leases gave a %T without a revision: %w", e.Object, err))
	}
	return handle(u)
}

// fromStored holds the event until all was told of nodes that was there before it.
func (w *watcher) fromStored(u update) bool {
	w.held = &u
	if w.ofNodes < u.revision {
		if err := w.storage.nodes().TellProgress(w.ctx); err != nil {
			return w.fail(err)
		}
	}
	return w.release()
}

// release tells of the stored lease that is held, once that can be.
func (w *watcher) release() bool {
	u := w.held
	if u == nil || w.ofNodes < u.revision {
		return true
	}
	w.held, w.position = nil, max(w.position, u.revision)
	switch {
	case u.begun:
		return w.begun()
	case u.Type == watch.Bookmark && !w.bookmarks:
		return true
	}
	return w.send(u.Event)
}

func (w *watcher) fromNodes(u update) bool {
	w.ofNodes = max(w.ofNodes, u.revision)
	if w.stored == nil {
		w.position = w.ofNodes
	}
	return w.tellNodes(u) && w.release()
}

func (w *watcher) tellNodes(u update) bool {
	switch {
	case u.begun:
		return w.begun()
	case u.Type == watch.Bookmark && (w.stored != nil || !w.bookmarks):
		return true
	case u.Type == watch.Bookmark:
		return w.bookmark(nil)
	}
	object := u.Object
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
	}
	node, ok := object.(*corev1.Node)
	if !ok {
		return w.fail(fmt.Errorf("watching nodes gave a %T", object))
	}
	return w.tell(u.Type, node)
}

// begun tells, once both have said so, that all that was there at the beginning was told. The server expects that only
// in the watch of a client that wants bookmarks, though those that this one is made from have it in any case.
func (w *watcher) begun() bool {
	if w.beginnings--; w.beginnings > 0 || !w.bookmarks {
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

// renew tells of all leases that were renewed. The list is read from a cache that need not be as far as the watch is:
// it is asked for what is no older, and a node whose newest version was not told yet waits for that.
func (w *watcher) renew() bool {
	o := *w.options
	o.ResourceVersion, o.ResourceVersionMatch = strconv.FormatUint(w.ofNodes, 10), ""
	o.AllowWatchBookmarks, o.SendInitialEvents, o.TimeoutSeconds, o.Limit, o.Continue = false, nil, nil, 0, ""
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
