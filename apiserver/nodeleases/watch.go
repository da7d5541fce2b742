package nodeleases

import (
	"context"
	"errors"
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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Watch implements rest.Watcher.
func (s *Storage) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	if options == nil {
		options = &metainternalversion.ListOptions{}
	}
	if !hasNodes(ctx) {
		return s.WatchGathered(ctx, options)
	}
	w := &watcher{
		storage: s, ctx: ctx, options: forNodes(options), match: s.matching(options), storedAt: s.storedAt,
		result: make(chan watch.Event), done: make(chan struct{}), members: map[string]bool{},
		told: map[string]time.Time{},
	}
	w.bookmarks = options.AllowWatchBookmarks
	w.renews = w.match.Label.Matches(labels.Set{MemberLabel: ""})
	from, err := w.begin(options)
	if err != nil {
		return nil, err
	}
	o := *w.options
	o.ResourceVersion, o.AllowWatchBookmarks = from, true // bookmarks carry its progress
	if w.nodes, err = s.nodes().WatchStore(onNodes(ctx), &o); err != nil {
		return nil, err
	}
	o.LabelSelector, o.FieldSelector = options.LabelSelector, options.FieldSelector
	if w.stored, err = s.Storage.Watch(ctx, &o); err != nil {
		w.nodes.Stop()
		return nil, err
	}
	go w.run() // ends with Stop, which the server calls for every watch, or with one of the two watches
	return w, nil
}

// begin sets the revision of the watch's begin, the leases that it begins with, and the members at
// that revision.
func (w *watcher) begin(options *metainternalversion.ListOptions) (from string, err error) {
	from = options.ResourceVersion
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if from == "" || from == "0" || initial {
		o := *options
		o.SendInitialEvents, o.AllowWatchBookmarks, o.ResourceVersionMatch, o.Limit, o.Continue = nil, false, "", 0, ""
		found, err := w.storage.List(w.ctx, &o)
		if err != nil {
			return "", err
		}
		list, ok := found.(*coordinationv1.LeaseList)
		if !ok {
			return "", fmt.Errorf("listing leases gave a %T", found)
		}
		from = list.ResourceVersion
		if options.SendInitialEvents == nil || initial {
			w.initial = list.Items
		}
		w.marksInitial = initial && w.bookmarks
	}
	if w.position, err = strconv.ParseUint(from, 10, 64); err != nil {
		return "", apierrors.NewBadRequest(fmt.Sprintf("the resourceVersion %q is not valid: %v", from, err))
	}
	w.ofNodes = w.position
	o := at(from)
	o.FieldSelector = w.options.FieldSelector
	nodes, err := w.storage.listNodes(w.ctx, o)
	if err != nil {
		return "", err
	}
	for i := range nodes.Items {
		if IsMember(&nodes.Items[i]) {
			w.members[nodes.Items[i].Name] = true
		}
	}
	w.options.SendInitialEvents, w.options.ResourceVersionMatch = nil, ""
	return from, nil
}

// watcher makes one watch out of one of Nodes, one of stored leases, and the time.
//
// The two watches run apart. A client that has seen the revision of a stored lease takes the watch
// up there, so that one is held until the watch of Nodes has come as far.
type watcher struct {
	storage   *Storage
	ctx       context.Context // of the request
	options   *metainternalversion.ListOptions
	match     storage.SelectionPredicate
	bookmarks bool // the client wants them
	renews    bool // leases of members are selected

	nodes, stored watch.Interface
	// storedAt returns the stored lease of a node, if there is one, as it was at a revision.
	storedAt func(ctx context.Context, name, revision string) (*coordinationv1.LeaseList, error)

	result chan watch.Event
	done   chan struct{}
	stop   sync.Once

	initial      []coordinationv1.Lease // the leases that the watch begins with
	marksInitial bool                   // a bookmark follows them

	// The rest belongs to run.

	position uint64               // the revision up to which everything was sent; events of members carry it
	ofNodes  uint64               // the revision up to which Nodes were handled
	held     *update              // of stored leases; nothing more is taken from there meanwhile
	members  map[string]bool      // as of ofNodes
	told     map[string]time.Time // the renewal that was last sent, by member
}

// update is an event of one of the watches.
type update struct {
	watch.Event
	object   metav1.Object
	revision uint64
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.stop.Do(func() { close(w.done) }) }

func (w *watcher) run() {
	defer close(w.result)
	defer w.nodes.Stop()
	defer w.stored.Stop()
	if !w.tellInitial() {
		return
	}
	timer := time.NewTimer(w.untilRenewal())
	defer timer.Stop()
	for goOn := true; goOn; {
		stored := w.stored.ResultChan()
		if w.held != nil {
			stored = nil
		}
		select {
		case e, open := <-stored:
			goOn = open && w.take(e, w.fromStored)
		case e, open := <-w.nodes.ResultChan():
			goOn = open && w.take(e, w.fromNodes)
		case <-timer.C:
			goOn = w.renew()
			timer.Reset(w.untilRenewal())
		case <-w.done:
			return
		}
	}
}

func (w *watcher) tellInitial() bool {
	for i := range w.initial {
		l := &w.initial[i]
		if isNodes(l.Namespace) && w.members[l.Name] {
			w.told[l.Name] = renewal(l)
		}
		if !w.send(watch.Event{Type: watch.Added, Object: l}) {
			return false
		}
	}
	w.initial = nil
	if !w.marksInitial {
		return true
	}
	return w.send(watch.Event{Type: watch.Bookmark, Object: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: w.revision(), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}})
}

// untilRenewal is the time until the leases of all members that live are renewed.
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

// fail sends the client the error that ends the watch.
func (w *watcher) fail(err error) bool {
	status := apierrors.NewInternalError(err).Status()
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
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
	u := update{Event: e, object: m}
	if u.revision, err = strconv.ParseUint(m.GetResourceVersion(), 10, 64); err != nil {
		return w.fail(fmt.Errorf("watching leases gave a %T without a revision: %w", e.Object, err))
	}
	return handle(u)
}

// fromStored holds the event until all earlier changes of Nodes were sent.
func (w *watcher) fromStored(u update) bool {
	w.held = &u
	if w.ofNodes < u.revision {
		if err := w.storage.nodes().TellProgress(onNodes(w.ctx)); err != nil {
			return w.fail(err)
		}
	}
	return w.release()
}

// release sends the stored lease that is held, once that is allowed and if no member hides it.
func (w *watcher) release() bool {
	u := w.held
	if u == nil || w.ofNodes < u.revision {
		return true
	}
	w.held, w.position = nil, max(w.position, u.revision)
	switch {
	case u.Type == watch.Bookmark:
		return !w.bookmarks || w.send(u.Event)
	case isNodes(u.object.GetNamespace()) && w.members[u.object.GetName()]:
		return true
	}
	return w.send(u.Event)
}

func (w *watcher) fromNodes(u update) bool {
	w.ofNodes = max(w.ofNodes, u.revision)
	if u.Type == watch.Bookmark {
		return w.release()
	}
	object := u.Object
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
	}
	node, ok := object.(*corev1.Node)
	if !ok {
		return w.fail(fmt.Errorf("watching nodes gave a %T", object))
	}
	return w.tellNode(u.Type, node) && w.release()
}

// tellNode passes on how a change of a Node changes the leases.
func (w *watcher) tellNode(what watch.EventType, node *corev1.Node) bool {
	was, is := w.members[node.Name], what != watch.Deleted && IsMember(node)
	switch {
	case is && was:
		return w.tell(watch.Modified, node)
	case is:
		w.members[node.Name] = true
		return w.tellStored(watch.Deleted, node.Name) && w.tell(watch.Added, node)
	case was:
		delete(w.members, node.Name)
		return w.tell(watch.Deleted, node) && w.tellStored(watch.Added, node.Name)
	}
	return true
}

// tellStored sends the event that a member begins or ceases to hide the stored lease of its name,
// if there is one. It is the one that the client knows, or will know: as it was at the position.
func (w *watcher) tellStored(what watch.EventType, name string) bool {
	list, err := w.storedAt(w.ctx, name, w.revision())
	if err != nil {
		return w.fail(err)
	}
	for i := range list.Items {
		lease := &list.Items[i]
		if what == watch.Deleted {
			lease.ResourceVersion = w.revision()
		}
		switch ok, err := w.match.Matches(lease); {
		case err != nil:
			return w.fail(err)
		case ok && !w.send(watch.Event{Type: what, Object: lease}):
			return false
		}
	}
	return true
}

// revision is the resourceVersion of an event of a member.
func (w *watcher) revision() string { return strconv.FormatUint(w.position, 10) }

func renewal(l *coordinationv1.Lease) (at time.Time) {
	if l.Spec.RenewTime != nil {
		at = l.Spec.RenewTime.Time
	}
	return at
}

// tell sends an event of a member's lease, unless the client has that renewal.
func (w *watcher) tell(what watch.EventType, node *corev1.Node) bool {
	lease := w.storage.lease(node, w.revision())
	switch ok, err := w.match.Matches(lease); {
	case err != nil:
		return w.fail(err)
	case !ok:
		return true
	}
	renewed := renewal(lease)
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

// renew sends all members' leases that were renewed. The list is read from a cache that may be
// behind the watch, so the list must be no older, and a Node whose newest version was not sent yet
// waits for that.
func (w *watcher) renew() bool {
	if !w.renews || len(w.members) == 0 {
		return true
	}
	o := *w.options
	o.ResourceVersion = strconv.FormatUint(w.ofNodes, 10)
	o.AllowWatchBookmarks, o.TimeoutSeconds, o.Limit, o.Continue = false, nil, 0, ""
	nodes, err := w.storage.listNodes(w.ctx, &o)
	if err != nil {
		return true // nothing is lost: the next list has the same renewals, and the watch of Nodes reports the fault
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if revision, err := strconv.ParseUint(node.ResourceVersion, 10, 64); err != nil || revision > w.ofNodes {
			continue
		}
		if w.members[node.Name] && !w.tell(watch.Modified, node) {
			return false
		}
	}
	return true
}
