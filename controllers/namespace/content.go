package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/barque/barque/controllers/pods"
)

// pageSize bounds a page in the list of remaining objects.
const pageSize = 500

// report is the result of one pass over a namespace's content.
type report struct {
	discovery error // the discovery of some API groups failed
	content   error // some deletions failed
	// remaining counts objects by resource, finalizers by name.
	remaining  map[schema.GroupVersionResource]int
	finalizers map[string]int
}

func (r *report) empty() bool {
	return r.discovery == nil && r.content == nil && len(r.remaining) == 0
}

// deletable is a namespaced resource whose objects can be listed and deleted.
type deletable struct {
	gvr        schema.GroupVersionResource
	collection bool // can be deleted all at once
}

// deletables reads a namespace's possible resources from discovery.
func deletables(lists []*metav1.APIResourceList) []deletable {
	var out []deletable
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if r.Namespaced && slices.Contains(r.Verbs, "delete") && slices.Contains(r.Verbs, "list") {
				out = append(out,
					deletable{gvr: gv.WithResource(r.Name), collection: slices.Contains(r.Verbs, "deletecollection")})
			}
		}
	}
	return out
}

// empty requests the deletion of all content of a namespace and reports the rest. Pods go first:
// objects that they use, such as network policies, must not go while they run.
func (t *term) empty(ctx context.Context, namespace string) *report {
	r := &report{remaining: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	lists, err := t.discover()
	if partial := (*discovery.ErrGroupDiscoveryFailed)(nil); errors.As(err, &partial) ||
		(err != nil && len(lists) == 0) {
		r.discovery = err
	}
	all := deletables(lists)
	isPods := func(d deletable) bool { return d.gvr.Group == "" && d.gvr.Resource == "pods" }
	first, rest := slices.Clone(all), slices.Clone(all)
	first = slices.DeleteFunc(first, func(d deletable) bool { return !isPods(d) })
	rest = slices.DeleteFunc(rest, isPods)
	t.pass(ctx, namespace, first, r)
	if r.content == nil && len(r.remaining) == 0 {
		t.pass(ctx, namespace, rest, r)
	}
	return r
}

func (t *term) pass(ctx context.Context, namespace string, resources []deletable, r *report) {
	left := make([][]metav1.PartialObjectMetadata, len(resources))
	r.content = pods.Parallel(len(resources), func(i int) (err error) {
		left[i], err = t.clear(ctx, namespace, resources[i])
		return err
	})
	for i, objects := range left {
		for _, o := range objects {
			r.remaining[resources[i].gvr]++
			for _, f := range o.Finalizers {
				r.finalizers[f]++
			}
		}
	}
}

// clear deletes the objects of one resource and returns the remaining ones.
func (t *term) clear(ctx context.Context, namespace string, d deletable) ([]metav1.PartialObjectMetadata, error) {
	api := t.metadata.Resource(d.gvr).Namespace(namespace)
	there, err := list(ctx, api)
	if err != nil || len(there) == 0 {
		return nil, wrap(d, err)
	}
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	asking := slices.ContainsFunc(there,
		func(o metav1.PartialObjectMetadata) bool { return o.DeletionTimestamp == nil })
	switch {
	case !asking: // all have been asked to go already
		return there, nil
	case d.collection:
		err = api.DeleteCollection(ctx, options, metav1.ListOptions{})
	}
	if !d.collection || apierrors.IsMethodNotSupported(err) {
		err = nil
		for _, o := range there {
			if e := api.Delete(ctx, o.Name, options); e != nil && !apierrors.IsNotFound(e) {
				err = errors.Join(err, e)
			}
		}
	}
	if err != nil {
		return nil, wrap(d, err)
	}
	there, err = list(ctx, api)
	return there, wrap(d, err)
}

func list(ctx context.Context, api metadata.ResourceInterface) ([]metav1.PartialObjectMetadata, error) {
	l, err := api.List(ctx, metav1.ListOptions{Limit: pageSize})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil, nil // the resource has gone from the API, or was never a real one
	}
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

func wrap(d deletable, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("deleting all %s: %w", d.gvr.GroupResource(), err)
}

// describe lists counts in a stable order.
func describe[K comparable](counts map[K]int, format string, name func(K) string) string {
	var parts []string
	for k, n := range counts {
		parts = append(parts, fmt.Sprintf(format, name(k), n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// patience is the pause before the next pass. It grows with the time since the deletion. Pods take
// their time to end, and their end is an event; most other objects are gone at once. A pass reads
// every resource, which is too much each second while a finalizer holds an object for days.
func patience(deleting time.Duration) time.Duration {
	return min(max(time.Second, deleting/4), 15*time.Second)
}
