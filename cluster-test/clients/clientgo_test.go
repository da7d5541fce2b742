package clients

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	watchtools "k8s.io/client-go/tools/watch"
)

func accessReview(namespace, account string) *authorizationv1.LocalSubjectAccessReview {
	return &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + namespace + ":" + account,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list",
				Resource: "configmaps"},
		}}
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"set": "watched"}},
		Data: map[string]string{"value": value}}
}

var (
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
	watched    = metav1.ListOptions{LabelSelector: "set=watched"}
)

// requests counts a client's requests.
type requests struct {
	mu     sync.Mutex
	counts map[string]int
}

// wrap counts the lists and watches that go through a transport.
func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		kind, q := "list", req.URL.Query()
		if q.Get("watch") != "" {
			kind = "watch"
		}
		if q.Get("sendInitialEvents") == "true" {
			kind = "watchlist"
		}
		r.mu.Lock()
		r.counts[kind]++
		r.mu.Unlock()
		return next.RoundTrip(req)
	})
}

func (r *requests) of(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[kind]
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestInformers runs the informers of three clients over WatchList, while objects change and the
// server restarts.
func TestInformers(t *testing.T) {
	s, ctx := startServer(t), t.Context()
	c := must(kubernetes.NewForConfig(s.config()))(t)
	maps_ := c.CoreV1().ConfigMaps("default")
	for i := range 20 {
		must(maps_.Create(ctx, configMap(fmt.Sprintf("m%d", i), "0"), metav1.CreateOptions{}))(t)
	}

	stop := make(chan struct{})
	counters := map[string]*requests{}
	informersOf := map[string]cache.SharedIndexInformer{}
	for name, build := range map[string]func(*rest.Config) (cache.SharedIndexInformer, error){
		"typed": func(config *rest.Config) (cache.SharedIndexInformer, error) {
			typed, err := kubernetes.NewForConfig(config)
			return informers.NewSharedInformerFactoryWithOptions(typed, 0, informers.WithNamespace("default"),
				informers.WithTweakListOptions(tweak)).Core().V1().ConfigMaps().Informer(), err
		},
		"dynamic": func(config *rest.Config) (cache.SharedIndexInformer, error) {
			d, err := dynamic.NewForConfig(config)
			return dynamicinformer.NewFilteredDynamicSharedInformerFactory(d, 0, "default", tweak).ForResource(
				configMaps).Informer(), err
		},
		"metadata": func(config *rest.Config) (cache.SharedIndexInformer, error) {
			m, err := metadata.NewForConfig(config)
			return metadatainformer.NewFilteredSharedInformerFactory(m, 0, "default", tweak).ForResource(
				configMaps).Informer(), err
		},
	} {
		counter := &requests{counts: map[string]int{}}
		config := s.config()
		config.Wrap(counter.wrap)
		informer := must(build(config))(t)
		counters[name], informersOf[name] = counter, informer
	}
	var running sync.WaitGroup
	for _, informer := range informersOf {
		running.Go(func() { informer.Run(stop) })
	}
	t.Cleanup(func() {
		close(stop)
		running.Wait()
	})

	// same waits until each informer has the API's objects.
	same := func(when string) {
		t.Helper()
		for name, informer := range informersOf {
			eventually(t, name+" informer agrees "+when, func(ctx context.Context) error {
				list, err := maps_.List(ctx, watched)
				if err != nil {
					return err
				}
				want, got := map[string]string{}, map[string]string{}
				for _, m := range list.Items {
					want[m.Name] = m.ResourceVersion
				}
				for _, o := range informer.GetStore().List() {
					m, err := meta.Accessor(o)
					if err != nil {
						return err
					}
					got[m.GetName()] = m.GetResourceVersion()
				}
				if !maps.Equal(want, got) {
					return fmt.Errorf("it has %v, want %v", got, want)
				}
				return nil
			})
		}
	}
	same("at first")
	change := func(round string) {
		t.Helper()
		eventually(t, "objects change", func(ctx context.Context) error {
			_, err := maps_.Patch(ctx, "m0", types.MergePatchType, []byte(`{"data":{"value":"`+round+`"}}`),
				metav1.PatchOptions{})
			return err
		})
		must(maps_.Create(ctx, configMap("new-"+round, ""), metav1.CreateOptions{}))(t)
		if err := maps_.DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "set=watched", FieldSelector: "metadata.name=m" + round}); err != nil {
			t.Fatal(err)
		}
		must(
			maps_.Patch(ctx, "m1"+round, types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/labels/set"}]`),
				metav1.PatchOptions{}))(t) // it leaves the selector
	}
	change("1")
	same("after changes")
	s.restart(syscall.SIGTERM)
	change("2")
	same("after a restart")
	s.restart(syscall.SIGKILL)
	change("3")
	same("after a crash")
	for name, counter := range counters {
		if counter.of("watchlist") == 0 || counter.of("list") > 0 {
			t.Errorf("the %s informer made %d streamed lists and %d others", name, counter.of("watchlist"),
				counter.of("list"))
		}
	}
	for _, o := range informersOf["metadata"].GetStore().List() {
		if m, ok := o.(*metav1.PartialObjectMetadata); !ok || m.Labels["set"] != "watched" {
			t.Errorf("the metadata informer has %#v", o)
		}
	}
}

func tweak(o *metav1.ListOptions) { o.LabelSelector = "set=watched" }

// TestPagination reads lists in pages, also when the revision of the first page has been
// compacted away.
func TestPagination(t *testing.T) {
	s, ctx := startServer(t), t.Context()
	c := must(kubernetes.NewForConfig(s.config()))(t)
	maps_ := c.CoreV1().ConfigMaps("default")
	const total = 25
	for i := range total {
		must(maps_.Create(ctx, configMap(fmt.Sprintf("m%02d", i), "0"), metav1.CreateOptions{}))(t)
	}
	eventually(t, "the controllers have put the CA beside them", func(ctx context.Context) error {
		_, err := maps_.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	page := func(next string) (*corev1.ConfigMapList, error) {
		return maps_.List(ctx, metav1.ListOptions{LabelSelector: "set=watched", Limit: 10, Continue: next})
	}
	t.Run("Consistent", func(t *testing.T) {
		first := must(page(""))(t)
		if len(first.Items) != 10 || first.Continue == "" || first.RemainingItemCount != nil {
			t.Fatalf("%d items, continue %q, remaining %v (a selector hides how many)", len(first.Items),
				first.Continue, first.RemainingItemCount)
		}
		whole := must(maps_.List(ctx, metav1.ListOptions{Limit: 10}))(t)
		if whole.RemainingItemCount == nil || *whole.RemainingItemCount != total+1-10 { // one is the CA's
			t.Errorf("remaining items: %v", whole.RemainingItemCount)
		}
		must(maps_.Create(ctx, configMap("m11a", ""), metav1.CreateOptions{}))(t)
		second := must(page(first.Continue))(t)
		third := must(page(second.Continue))(t)
		if second.ResourceVersion != first.ResourceVersion || third.ResourceVersion != first.ResourceVersion {
			t.Errorf("pages of %s, %s and %s", first.ResourceVersion, second.ResourceVersion, third.ResourceVersion)
		}
		if n := len(first.Items) + len(second.Items) + len(third.Items); n != total || third.Continue != "" {
			t.Errorf("%d items in all pages, then %q", n, third.Continue)
		}
		if err := maps_.Delete(ctx, "m11a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for what, o := range map[string]metav1.ListOptions{
			"a token that is none":       {Limit: 10, Continue: "bm9uc2Vuc2U"},
			"a token and a version":      {Limit: 10, Continue: first.Continue, ResourceVersion: first.ResourceVersion},
			"a match without a version":  {ResourceVersionMatch: metav1.ResourceVersionMatchExact},
			"a version that is none":     {ResourceVersion: "soon"},
			"an unknown way of matching": {ResourceVersion: "1", ResourceVersionMatch: "Sometimes"},
		} {
			if _, err := maps_.List(ctx, o); !apierrors.IsBadRequest(err) && !apierrors.IsInvalid(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})

	t.Run("Expired", func(t *testing.T) {
		first := must(page(""))(t)
		churn(t, maps_)
		var expired *apierrors.StatusError
		eventually(t, "the pages have left history", func(context.Context) error {
			_, err := page(first.Continue)
			if !errors.As(err, &expired) {
				return fmt.Errorf("the old token still reads: %v", err)
			}
			return nil
		})
		if !apierrors.IsResourceExpired(expired) || expired.Status().Code != http.StatusGone ||
			expired.Status().Continue == "" {
			t.Fatalf("the old token: %+v", expired.Status())
		}
		// The token that comes with the error reads the rest of the present objects.
		if err := maps_.Delete(ctx, "m24", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		names, next := map[string]bool{}, expired.Status().Continue
		for _, m := range first.Items {
			names[m.Name] = true
		}
		for next != "" {
			rest := must(page(next))(t)
			if rest.ResourceVersion == first.ResourceVersion {
				t.Error("the rest claims to be of the first page's version")
			}
			for _, m := range rest.Items {
				if names[m.Name] {
					t.Errorf("%s came twice", m.Name)
				}
				names[m.Name] = true
			}
			next = rest.Continue
		}
		if len(names) != total-1 || names["m24"] {
			t.Errorf("%d names in all pages: %v", len(names), names)
		}
		if _, err := maps_.List(ctx,
			metav1.ListOptions{ResourceVersion: first.ResourceVersion,
				ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
			t.Errorf("an exact version that has left history: %v", err)
		}
	})

	t.Run("Pager", func(t *testing.T) {
		// A pager whose token expires half-way lists everything anew.
		pages, churned := 0, false
		p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.Continue != "" && !churned {
				churned = true
				churn(t, maps_)
				eventually(t, "the pages have left history", func(ctx context.Context) error {
					_, err := maps_.List(ctx, o)
					if !apierrors.IsResourceExpired(err) {
						return fmt.Errorf("the old token still reads: %v", err)
					}
					return nil
				})
			}
			pages++
			return maps_.List(ctx, o)
		})
		p.PageSize = 10
		list, _, err := p.List(ctx, watched)
		if err != nil || !churned {
			t.Fatalf("churned %v, %v", churned, err)
		}
		if n := meta.LenList(list); n != total-1 {
			t.Errorf("%d items in %d requests", n, pages)
		}
	})

	t.Run("ExpiredWatch", func(t *testing.T) {
		w, err := maps_.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
		if err == nil {
			defer w.Stop()
			e := <-w.ResultChan()
			err = apierrors.FromObject(e.Object)
		}
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("a watch from the beginning: %v", err)
		}
	})

	t.Run("Future", func(t *testing.T) {
		err := c.CoreV1().RESTClient().Get().Namespace("default").Resource("configmaps").MaxRetries(0).
			Param("resourceVersion", "999999999").Param("resourceVersionMatch", "NotOlderThan").Do(ctx).Error()
		if !apierrors.IsTimeout(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("a version that is not reached yet: %v", err)
		}
	})
}

// churn makes so much history that the store drops the revisions before it.
func churn(t testing.TB, maps_ typedcorev1.ConfigMapInterface) {
	t.Helper()
	const historyBytes = 64 << 20 // the history that the store keeps
	big := strings.Repeat("history ", 900<<10/8)
	name := "churn-" + strings.ToLower(rand.Text())
	must(
		maps_.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}))(t)
	for i := range historyBytes/len(big) + 10 {
		must(
			maps_.Update(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
					Data: map[string]string{"big": fmt.Sprint(i, big)}}, metav1.UpdateOptions{}))(t)
	}
	if err := maps_.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestWatchResumes watches across restarts, from where the watch ended: each change comes once and
// in order.
func TestWatchResumes(t *testing.T) {
	s, ctx := startServer(t), t.Context()
	c := must(kubernetes.NewForConfig(s.config()))(t)
	maps_ := c.CoreV1().ConfigMaps("default")
	first := must(maps_.Create(ctx, configMap("watched", "0"), metav1.CreateOptions{}))(t)
	w := must(watchtools.NewRetryWatcherWithContext(ctx, first.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.AllowWatchBookmarks = watched.LabelSelector, true
			return maps_.Watch(ctx, o)
		},
	}))(t)
	defer w.Stop()
	n := 0
	write := func(times int) {
		for range times {
			n++
			value := fmt.Sprint(n)
			eventually(t, "the object changes", func(ctx context.Context) error {
				_, err := maps_.Patch(ctx, "watched", types.MergePatchType, []byte(`{"data":{"value":"`+value+`"}}`),
					metav1.PatchOptions{})
				return err
			})
		}
	}
	seen, last := 0, first.ResourceVersion
	read := func() {
		t.Helper()
		for seen < n {
			select {
			case e, open := <-w.ResultChan():
				m, ok := e.Object.(*corev1.ConfigMap)
				if !open || !ok {
					t.Fatalf("event %+v (open: %v) after %d of %d", e, open, seen, n)
				}
				if e.Type == watch.Bookmark {
					continue
				}
				seen++
				if want := fmt.Sprint(seen); e.Type != watch.Modified || m.Data["value"] != want {
					t.Fatalf("%s %q, want MODIFIED %q", e.Type, m.Data["value"], want)
				}
				if newer, err := resourceversion.CompareResourceVersion(m.ResourceVersion, last); err != nil ||
					newer <= 0 {
					t.Fatalf("version %s after %s, %v", m.ResourceVersion, last, err)
				}
				last = m.ResourceVersion
			case <-time.After(hang):
				t.Fatalf("timed out: event %d of %d", seen+1, n)
			}
		}
	}
	write(5)
	read()
	s.restart(syscall.SIGTERM)
	write(5)
	read()
	write(5) // these are seen after the restart only
	s.restart(syscall.SIGKILL)
	write(5)
	read()
}

// TestDynamic drives the clients that know no types.
func TestDynamic(t *testing.T) {
	s, ctx := startServer(t), t.Context()
	d := must(dynamic.NewForConfig(s.config()))(t).Resource(configMaps).Namespace("default")
	m := must(metadata.NewForConfig(s.config()))(t).Resource(configMaps).Namespace("default")
	object := func(value string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": "dynamic", "labels": map[string]any{"set": "watched"}},
			"data":     map[string]any{"value": value},
		}}
	}
	created := must(d.Create(ctx, object("1"), metav1.CreateOptions{FieldValidation: "Strict"}))(t)
	if created.GetKind() != "ConfigMap" || created.GetAPIVersion() != "v1" || created.GetUID() == "" {
		t.Errorf("created %v", created.Object)
	}
	wrong := object("1")
	wrong.Object["daata"] = map[string]any{}
	wrong.SetName("wrong")
	if _, err := d.Create(ctx, wrong, metav1.CreateOptions{FieldValidation: "Strict"}); !apierrors.IsBadRequest(err) ||
		!strings.Contains(err.Error(), `unknown field "daata"`) {
		t.Errorf("an unknown field: %v", err)
	}
	if _, err := d.Apply(ctx, "dynamic", object("2"),
		metav1.ApplyOptions{FieldManager: "applier"}); !apierrors.IsConflict(err) ||
		!apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		t.Errorf("applying over another's field: %v", err)
	}
	applied := must(d.Apply(ctx, "dynamic", object("2"), metav1.ApplyOptions{FieldManager: "applier", Force: true}))(t)
	if value, _, _ := unstructured.NestedString(applied.Object, "data", "value"); value != "2" {
		t.Errorf("applied %v", applied.Object)
	}

	partial := must(m.Get(ctx, "dynamic", metav1.GetOptions{}))(t)
	if partial.GetUID() != created.GetUID() || partial.Labels["set"] != "watched" {
		t.Errorf("metadata %+v", partial)
	}
	w := must(m.Watch(ctx, metav1.ListOptions{ResourceVersion: partial.ResourceVersion}))(t)
	defer w.Stop()
	patched := must(
		m.Patch(ctx, "dynamic", types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`),
			metav1.PatchOptions{}))(t)
	if patched.Annotations["a"] != "b" {
		t.Errorf("patched %+v", patched)
	}
	if e := <-w.ResultChan(); e.Type != watch.Modified ||
		e.Object.(*metav1.PartialObjectMetadata).Annotations["a"] != "b" {
		t.Errorf("event %+v", e)
	}
	list := must(m.List(ctx, watched))(t)
	if len(list.Items) != 1 || list.ResourceVersion == "" {
		t.Errorf("%d items at %q", len(list.Items), list.ResourceVersion)
	}
	uid := types.UID("another")
	if err := m.Delete(ctx, "dynamic",
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); !apierrors.IsConflict(err) {
		t.Errorf("deleting another one: %v", err)
	}
	if err := m.DeleteCollection(ctx, metav1.DeleteOptions{}, watched); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Get(ctx, "dynamic", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the delete: %v", err)
	}
}
