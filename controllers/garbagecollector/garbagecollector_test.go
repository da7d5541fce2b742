package garbagecollector

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	sets        = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	kinds       = map[schema.GroupVersionResource]string{deployments: "Deployment", sets: "ReplicaSet", pods: "Pod"}
)

// api is a metadata API with the API server's part of deletions: the two finalizers.
type api struct {
	*metadatafake.FakeMetadataClient
	objects *controllertest.Tracker
	t       *testing.T
	version atomic.Int64
	kit     *controllertest.Cluster // of the controller, once it is started
}

func newAPI(t *testing.T) *api {
	scheme := kruntime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for gvr, kind := range kinds {
		scheme.AddKnownTypeWithName(gvr.GroupVersion().WithKind(kind), &metav1.PartialObjectMetadata{})
		scheme.AddKnownTypeWithName(gvr.GroupVersion().WithKind(kind+"List"), &metav1.PartialObjectMetadataList{})
	}
	a := &api{
		FakeMetadataClient: metadatafake.NewSimpleMetadataClient(scheme), t: t,
		objects: controllertest.NewTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDeserializer()),
	}
	a.objects.Serve(&a.Fake)
	a.PrependReactor("delete", "*", a.delete)
	a.PrependReactor("patch", "*", a.patched)
	return a
}

// refTo is how dependents refer to an object, which need not be there yet.
func refTo(gvr schema.GroupVersionResource, name string) metav1.OwnerReference {
	block := true
	return metav1.OwnerReference{
		APIVersion: gvr.GroupVersion().String(), Kind: kinds[gvr], Name: name, UID: types.UID(name),
		Controller: &block, BlockOwnerDeletion: &block,
	}
}

// add creates an object owned by others, whose names are their UIDs too.
func (a *api) add(gvr schema.GroupVersionResource, name string, owners ...metav1.OwnerReference) metav1.OwnerReference {
	a.t.Helper()
	o := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: gvr.GroupVersion().String(), Kind: kinds[gvr]},
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name), OwnerReferences: owners,
			ResourceVersion: strconv.FormatInt(a.version.Add(1), 10)},
	}
	if err := a.objects.Create(gvr, o, "d"); err != nil {
		a.t.Fatal(err)
	}
	return refTo(gvr, name)
}

func (a *api) get(gvr schema.GroupVersionResource, name string) *metav1.PartialObjectMetadata {
	o, err := a.Resource(gvr).Namespace("d").Get(a.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		a.t.Error(err)
	}
	return o
}

func (a *api) gone(gvr schema.GroupVersionResource, name string) bool { return a.get(gvr, name) == nil }

func (a *api) remove(gvr schema.GroupVersionResource, name string, policy metav1.DeletionPropagation) {
	a.t.Helper()
	if err := a.Resource(gvr).Namespace("d").Delete(a.t.Context(), name,
		metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		a.t.Fatal(err)
	}
}

func (a *api) delete(action clienttesting.Action) (bool, kruntime.Object, error) {
	d := action.(clienttesting.DeleteActionImpl)
	finalizer := ""
	if p := d.DeleteOptions.PropagationPolicy; p != nil {
		switch *p {
		case metav1.DeletePropagationForeground:
			finalizer = metav1.FinalizerDeleteDependents
		case metav1.DeletePropagationOrphan:
			finalizer = metav1.FinalizerOrphanDependents
		}
	}
	if finalizer == "" {
		return false, nil, nil
	}
	obj, err := a.objects.Get(d.GetResource(), d.GetNamespace(), d.GetName())
	if err != nil {
		return true, nil, err
	}
	o := obj.DeepCopyObject().(*metav1.PartialObjectMetadata)
	now := metav1.Now()
	o.DeletionTimestamp, o.Finalizers = &now, []string{finalizer}
	o.ResourceVersion = strconv.FormatInt(a.version.Add(1), 10)
	return true, nil, a.objects.Update(d.GetResource(), o, d.GetNamespace())
}

// patched deletes an object that has lost its last finalizer.
func (a *api) patched(action clienttesting.Action) (bool, kruntime.Object, error) {
	p := action.(clienttesting.PatchActionImpl)
	_, obj, err := clienttesting.ObjectReaction(a.objects)(p)
	if err != nil {
		return true, nil, err
	}
	if o := obj.(*metav1.PartialObjectMetadata); o.DeletionTimestamp != nil && len(o.Finalizers) == 0 {
		return true, obj, a.objects.Delete(p.GetResource(), p.GetNamespace(), p.GetName())
	}
	return true, obj, nil
}

func start(t *testing.T, a *api) {
	t.Helper()
	startWith(t, a, served)
}

func startWith(t *testing.T, a *api, discover func() ([]*metav1.APIResourceList, error)) {
	t.Helper()
	c, err := New(Config{MetadataFor: func(context.Context) (metadata.Interface, error) { return a, nil }})
	if err != nil {
		t.Fatal(err)
	}
	c.discover = discover
	k := controllertest.New(t)
	k.Start(c.Run)
	a.kit = k
}

// served is the API's discovery.
func served() ([]*metav1.APIResourceList, error) {
	verbs := metav1.Verbs{"get", "list", "watch", "delete", "patch"}
	return []*metav1.APIResourceList{
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
			{Name: "deployments", Kind: "Deployment", Namespaced: true, Verbs: verbs},
			{Name: "replicasets", Kind: "ReplicaSet", Namespaced: true, Verbs: verbs},
		}},
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: verbs},
			{Name: "events", Kind: "Event", Namespaced: true, Verbs: verbs},
			{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
		}},
	}, nil
}

// family makes a Deployment with a ReplicaSet with two pods, and a pod without an owner.
func family(a *api) {
	d := a.add(deployments, "deploy")
	s := a.add(sets, "set", d)
	a.add(pods, "pod1", s)
	a.add(pods, "pod2", s)
	a.add(pods, "alone")
}

func TestBackground(t *testing.T) {
	a := newAPI(t)
	family(a)
	start(t, a)
	a.remove(deployments, "deploy", metav1.DeletePropagationBackground)
	controllertest.Eventually(t, "the family is gone", func() bool {
		return a.gone(sets, "set") && a.gone(pods, "pod1") && a.gone(pods, "pod2")
	})
	if a.gone(pods, "alone") {
		t.Error("a pod that is nobody's was deleted")
	}
}

// An owner in another namespace is none. The event names it, whichever of the two is seen first.
func TestOwnersInOtherNamespacesAreReported(t *testing.T) {
	for _, first := range []string{"owner", "dependent"} {
		t.Run(first+" first", func(t *testing.T) {
			g := newGraph()
			at := func(namespace, name string, owners ...metav1.OwnerReference) *object {
				return newObject(pods,
					&metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), OwnerReferences: owners})
			}
			owner, dependent := at("d", "owner"), at("e", "dependent", refTo(pods, "owner"))
			neighbour, node := at("d", "neighbour", refTo(pods, "owner")), at("", "node")
			ofNode := at("e", "of-node", refTo(pods, "node"))
			order := []*object{owner, dependent, neighbour, node, ofNode}
			if first == "dependent" {
				slices.Reverse(order)
			}
			var reported []string
			for _, o := range append(order, owner, dependent) { // the last two are seen again
				if g.get(o.uid) == nil {
					for _, m := range g.misplaced(o) {
						reported = append(reported, m.object.name+" of "+m.ref.Name)
					}
				}
				g.put(o)
			}
			if want := []string{"dependent of owner"}; !slices.Equal(reported, want) {
				t.Errorf("reported %q, want %q", reported, want)
			}
		})
	}
	a := newAPI(t)
	a.add(pods, "owner")
	stranger := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "e", Name: "stranger", UID: "stranger",
			OwnerReferences: []metav1.OwnerReference{refTo(pods, "owner")}, ResourceVersion: "1"},
	}
	if err := a.objects.Create(pods, stranger, "e"); err != nil {
		t.Fatal(err)
	}
	start(t, a)
	controllertest.Eventually(t, "an event tells of the owner in another namespace", func() bool {
		list, err := a.kit.Client.CoreV1().Events("e").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "OwnerRefInvalidNamespace" && e.Type == corev1.EventTypeWarning &&
				e.InvolvedObject.Kind == "Pod" && e.InvolvedObject.Name == "stranger" &&
				e.Message == `ownerRef [v1/Pod, namespace: e, name: owner, uid: owner] does not exist in namespace "e"`
		})
	})
}

func TestForegroundGoesLast(t *testing.T) {
	a := newAPI(t)
	family(a)
	start(t, a)
	a.remove(deployments, "deploy", metav1.DeletePropagationForeground)
	controllertest.Eventually(t, "the family is gone", func() bool { return a.gone(deployments, "deploy") })
	if !a.gone(sets, "set") || !a.gone(pods, "pod1") || !a.gone(pods, "pod2") {
		t.Error("the owner went before its dependents")
	}
	released := func(name string) int {
		return slices.IndexFunc(a.Actions(), func(action clienttesting.Action) bool {
			p, ok := action.(clienttesting.PatchActionImpl)
			return ok && p.Name == name
		})
	}
	if i, j := released("set"), released("deploy"); i < 0 || j < i {
		t.Errorf("the set was released by action %d, the deployment by action %d", i, j)
	}
}

func TestOrphan(t *testing.T) {
	a := newAPI(t)
	family(a)
	start(t, a)
	a.remove(sets, "set", metav1.DeletePropagationOrphan)
	controllertest.Eventually(t, "the set is gone", func() bool { return a.gone(sets, "set") })
	for _, name := range []string{"pod1", "pod2"} {
		if p := a.get(pods, name); p == nil || len(p.OwnerReferences) > 0 {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// The informer of one resource may be behind that of another.
func TestOrphanThatTheGraphDoesNotShow(t *testing.T) {
	a := newAPI(t)
	silent := watch.NewFake()
	a.PrependWatchReactor("pods",
		func(clienttesting.Action) (bool, watch.Interface, error) { return true, silent, nil })
	s := a.add(sets, "set")
	start(t, a)
	controllertest.Eventually(t, "the pods are followed", func() bool {
		return slices.ContainsFunc(a.Actions(), func(act clienttesting.Action) bool {
			return act.GetVerb() == "watch" && act.GetResource() == pods
		})
	})
	a.add(pods, "new", s)
	a.remove(sets, "set", metav1.DeletePropagationOrphan)
	controllertest.Eventually(t, "the set is gone", func() bool { return a.gone(sets, "set") })
	if p := a.get(pods, "new"); p == nil || len(p.OwnerReferences) > 0 {
		t.Errorf("the new pod would be taken for garbage: %v", p)
	}
}

func TestOwnerThatNeverWas(t *testing.T) {
	a := newAPI(t)
	there := a.add(sets, "there")
	never := there
	never.Name, never.UID = "never", "never"
	replaced := there
	replaced.UID = "another" // of the same name
	strange := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Strange", Name: "s", UID: "s"}
	a.add(pods, "lost", never)
	a.add(pods, "stale", replaced)
	a.add(pods, "kept", there, never)
	a.add(pods, "foreign", strange)
	start(t, a)
	controllertest.Eventually(t, "the lost are gone, the kept drops its absent owner", func() bool {
		kept := a.get(pods, "kept")
		return a.gone(pods, "lost") && a.gone(pods, "stale") && kept != nil && len(kept.OwnerReferences) == 1
	})
	if a.gone(pods, "foreign") {
		t.Error("deleted for an owner of a kind that is not known")
	}
}

func TestDependentThatComesTooLate(t *testing.T) {
	a := newAPI(t)
	s := a.add(sets, "set")
	start(t, a)
	a.remove(sets, "set", metav1.DeletePropagationBackground)
	a.add(pods, "late", s)
	controllertest.Eventually(t, "the late pod is gone", func() bool { return a.gone(pods, "late") })
}

// Each case names the owners of each object, and which objects are deleted in the foreground.
func TestForegroundInACircle(t *testing.T) {
	type owners map[string][]string
	for name, c := range map[string]struct {
		owners owners
		remove []string
	}{
		"one": {owners{"pod1": {"pod1"}}, []string{"pod1"}},
		"two": {owners{"pod1": {"pod2"}, "pod2": {"pod1"}}, []string{"pod1"}},
		"three": {
			owners{"pod1": {"pod3"}, "pod2": {"pod1"}, "pod3": {"pod2"}}, []string{"pod2"},
		},
		"three, all deleted at once": {
			owners{"pod1": {"pod3"}, "pod2": {"pod1"}, "pod3": {"pod2"}}, []string{"pod1", "pod2", "pod3"},
		},
		"three with a tail": {
			owners{"pod1": {"pod3"}, "pod2": {"pod1"}, "pod3": {"pod2"}, "pod4": {"pod3"}, "pod5": {"pod4"}},
			[]string{"pod1"},
		},
		"two circles through one object": {
			owners{"pod1": {"pod2", "pod3"}, "pod2": {"pod1"}, "pod3": {"pod1"}}, []string{"pod2", "pod3"},
		},
		"three kinds": {
			owners{"deploy": {"pod1"}, "set": {"deploy"}, "pod1": {"set"}}, []string{"set"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			for name, by := range c.owners {
				var refs []metav1.OwnerReference
				for _, owner := range by {
					refs = append(refs, refTo(kindOf(owner), owner))
				}
				a.add(kindOf(name), name, refs...)
			}
			// A single deletion comes while the controller runs. Several come before it starts,
			// or it could remove the object of the second one first.
			if len(c.remove) > 1 {
				for _, name := range c.remove {
					a.remove(kindOf(name), name, metav1.DeletePropagationForeground)
				}
				start(t, a)
			} else {
				start(t, a)
				a.remove(kindOf(c.remove[0]), c.remove[0], metav1.DeletePropagationForeground)
			}
			controllertest.Eventually(t, "all are gone", func() bool {
				for name := range c.owners {
					if !a.gone(kindOf(name), name) {
						return false
					}
				}
				return true
			})
		})
	}
}

func kindOf(name string) schema.GroupVersionResource {
	switch name {
	case "deploy":
		return deployments
	case "set":
		return sets
	}
	return pods
}

// An opened circle does not change the order outside it: the tail goes before the object that owns
// it, and the outer owner after its dependent.
func TestCircleBlocksOnlyItself(t *testing.T) {
	a := newAPI(t)
	d := a.add(deployments, "deploy")
	a.add(sets, "set", d, refTo(pods, "pod1"))
	a.add(pods, "tail", a.add(pods, "pod1", refTo(sets, "set")))
	for _, name := range []string{"deploy", "set", "pod1"} {
		a.remove(kindOf(name), name, metav1.DeletePropagationForeground)
	}
	before := map[string]string{"pod1": "tail", "deploy": "set"}
	a.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, kruntime.Object, error) {
		p := action.(clienttesting.PatchActionImpl)
		first := before[p.GetName()]
		if !bytes.Contains(p.GetPatch(), []byte("finalizers")) || first == "" {
			return false, nil, nil
		}
		if _, err := a.objects.Get(kindOf(first), "d", first); !apierrors.IsNotFound(err) {
			t.Errorf("%s goes before %s: %v", p.GetName(), first, err)
		}
		return false, nil, nil
	})
	start(t, a)
	controllertest.Eventually(t, "all are gone", func() bool {
		return a.gone(deployments, "deploy") && a.gone(sets, "set") && a.gone(pods, "pod1")
	})
}

// A circle that cannot be opened is tried again with back-off.
func TestCircleThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.add(pods, "pod1", refTo(pods, "pod2"))
		a.add(pods, "pod2", refTo(pods, "pod1"))
		var tries atomic.Int32
		a.PrependReactor("patch", "*", func(clienttesting.Action) (bool, kruntime.Object, error) {
			tries.Add(1)
			return true, nil, errors.New("no luck")
		})
		start(t, a)
		a.remove(pods, "pod1", metav1.DeletePropagationForeground)
		time.Sleep(time.Hour)
		if n := tries.Load(); n < 10 || n > 200 {
			t.Errorf("%d tries in an hour", n)
		}
	})
}

func TestDiscoveryThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		family(a)
		a.remove(deployments, "deploy", metav1.DeletePropagationBackground)
		var asked atomic.Int32
		var well atomic.Bool
		startWith(t, a, func() ([]*metav1.APIResourceList, error) {
			asked.Add(1)
			if !well.Load() {
				return nil, errors.New("no answer")
			}
			return served()
		})
		time.Sleep(time.Hour)
		if n := asked.Load(); n < 100 || n > 130 {
			t.Errorf("asked %d times in an hour", n)
		}
		well.Store(true)
		time.Sleep(time.Minute)
		if !a.gone(pods, "pod1") {
			t.Error("nothing is collected when discovery answers again")
		}
	})
}

// Custom resources whose conversion webhook is down cannot be listed, for instance.
func TestResourceThatCannotBeListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		s := a.add(sets, "set")
		a.add(pods, "pod1", s)
		a.PrependReactor("list", "deployments", func(clienttesting.Action) (bool, kruntime.Object, error) {
			return true, nil, errors.New("conversion webhook: no answer")
		})
		start(t, a)
		a.remove(sets, "set", metav1.DeletePropagationForeground)
		time.Sleep(20 * time.Second)
		if a.gone(pods, "pod1") {
			t.Error("did not wait for the resource at all")
		}
		time.Sleep(time.Minute)
		if !a.gone(pods, "pod1") || !a.gone(sets, "set") {
			t.Error("a resource that cannot be listed stops foreground deletions elsewhere")
		}
	})
}

// A resource may be listed late, such as a custom one after a start of the API server. An owner
// that is deleted before has no deletion event.
func TestOwnerThatEndsBeforeItIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.add(pods, "pod1", a.add(sets, "set"))
		var listed atomic.Bool
		a.PrependReactor("list", "replicasets", func(clienttesting.Action) (bool, kruntime.Object, error) {
			if !listed.Load() {
				return true, nil, errors.New("not served yet")
			}
			return false, nil, nil
		})
		start(t, a)
		time.Sleep(10 * time.Second)
		if a.gone(pods, "pod1") {
			t.Fatal("a pod went while its owner was there")
		}
		a.remove(sets, "set", metav1.DeletePropagationBackground)
		listed.Store(true)
		time.Sleep(2 * time.Minute)
		if !a.gone(pods, "pod1") {
			t.Error("nobody looked again for the owner")
		}
	})
}

// slowLists is an API whose lists do not end before their context does.
type slowLists struct {
	*api
	begun atomic.Int32
}

func (s *slowLists) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	return slowGetter{s.api.Resource(gvr), s}
}

type slowGetter struct {
	metadata.Getter
	api *slowLists
}

func (g slowGetter) List(ctx context.Context, _ metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	g.api.begun.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

func (g slowGetter) Namespace(string) metadata.ResourceInterface { return g }

// A new leader's first lists do not come all at once, as clients wait for it then. And some that do
// not end keep no other from being made.
func TestFirstListsAreFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &slowLists{api: newAPI(t)}
		s := newSources(a, served, func(schema.GroupVersionResource, metav1.Object, metav1.Object) {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, func() {}, func(err error) { t.Error(err) })
		}()
		synctest.Wait()
		if n := a.begun.Load(); n != firstLists {
			t.Errorf("%d lists at once, want %d", n, firstLists)
		}
		time.Sleep(firstList)
		synctest.Wait()
		if n := a.begun.Load(); n != firstLists+1 {
			t.Errorf("%d lists after others had waited for long enough, want %d, one for each kind", n, firstLists+1)
		}
		cancel()
		<-done
	})
}

// A deletion waits for the dependents of a resource before the first list of that resource, however
// long that takes. The wait ends with the term.
func TestNothingIsCompleteBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &slowLists{api: newAPI(t)}
		s := newSources(a, served, func(schema.GroupVersionResource, metav1.Object, metav1.Object) {})
		for range firstLists { // others that take their time
			s.turns <- struct{}{}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, func() {}, func(err error) { t.Error(err) })
		}()
		time.Sleep(2 * unlisted)
		if s.complete() {
			t.Error("all is said to be known, and nothing was listed")
		}
		if n := a.begun.Load(); n > 0 {
			t.Errorf("%d lists without a turn", n)
		}
		<-s.turns
		time.Sleep(2 * unlisted)
		if !s.complete() {
			t.Error("lists that do not end keep deletions waiting")
		}
		cancel()
		<-done
		if n := len(s.turns); n != firstLists-1 {
			t.Errorf("%d turns are taken, want the %d of others", n, firstLists-1)
		}
	})
}
