package resource

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/watchwriter"
)

// Storage serves the main resource of a Kind.
type Storage struct {
	*registry.Store
	shortNames, categories []string
}

var (
	_ rest.StandardStorage    = (*Storage)(nil)
	_ rest.ShortNamesProvider = (*Storage)(nil)
	_ rest.CategoriesProvider = (*Storage)(nil)
)

// ShortNames implements rest.ShortNamesProvider.
func (s *Storage) ShortNames() []string { return s.shortNames }

// Categories implements rest.CategoriesProvider.
func (s *Storage) Categories() []string { return s.categories }

// ListEncoded lists as List does. Its answer may be a rawlist.List, where the client accepts one:
// for callers that do not use the listed objects.
func (s *Storage) ListEncoded(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	ctx, raw := rawlist.Start(ctx)
	list, err := s.Store.List(ctx, options)
	if err != nil {
		return nil, err
	}
	return raw.Answer(list), nil
}

// WatchGathered watches as Watch does. Events that are ready at the same time are sent together:
// for callers that pass the watch to the client unchanged.
func (s *Storage) WatchGathered(
	ctx context.Context, options *metainternalversion.ListOptions,
) (watch.Interface, error) {
	w, err := s.Store.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return watchwriter.Gather(ctx, w), nil
}

// served is a Storage that nothing is wrapped around.
type served struct{ *Storage }

// List implements rest.Lister.
func (s *served) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return s.ListEncoded(ctx, options)
}

// Watch implements rest.Watcher.
func (s *served) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	return s.WatchGathered(ctx, options)
}

// Build implements Resource.
func (k *Kind[T]) Build(b Builder) ([]Installation, error) {
	store, err := k.buildStore(b)
	if err != nil {
		return nil, fmt.Errorf("storage of %s: %w", k.Name, err)
	}
	main := &Storage{Store: store, shortNames: k.ShortNames, categories: k.Categories}

	var outermost rest.Storage = main
	if k.Wrap != nil {
		outermost = k.Wrap(main)
	}
	if s, ok := outermost.(*Storage); ok {
		outermost = &served{s}
	}
	paths := map[string]rest.Storage{k.Name: outermost}
	if k.Status != nil {
		paths[k.Name+"/status"] = k.buildStatus(main)
	}
	if k.Scale != nil {
		paths[k.Name+"/scale"] = k.buildScale(main)
	}
	for name, build := range k.Subresources {
		sub, err := build(main)
		if err != nil {
			return nil, fmt.Errorf("subresource %s/%s: %w", k.Name, name, err)
		}
		paths[k.Name+"/"+name] = sub
	}

	installed := []Installation{{GroupVersion: k.GroupVersion, Storage: paths}}
	for _, a := range k.Aliases {
		installed = append(installed, Installation{GroupVersion: a.gv, Storage: paths})
	}
	return installed, nil
}

func (k *Kind[T]) buildStore(b Builder) (*registry.Store, error) {
	base := strategy[T]{ObjectTyper: b.Scheme, NameGenerator: names.SimpleNameGenerator, kind: k}
	group := k.GroupVersion.Group
	list := reflect.TypeOf(k.List).Elem()

	s := &registry.Store{
		NewFunc:                   func() runtime.Object { return object(new(T)) },
		NewListFunc:               func() runtime.Object { return reflect.New(list).Interface().(runtime.Object) },
		DefaultQualifiedResource:  schema.GroupResource{Group: group, Resource: k.Name},
		SingularQualifiedResource: schema.GroupResource{Group: group, Resource: k.Singular},
		CreateStrategy:            base,
		UpdateStrategy:            base,
		DeleteStrategy:            base,
		ResetFieldsStrategy:       base,
		ReturnDeletedObject:       k.ReturnDeleted,
		TableConvertor:            k.tables(b.Now),
	}
	if k.GracefulDelete != nil {
		s.DeleteStrategy = gracefulStrategy[T]{base}
	}
	k.setHooks(s)

	attrs := k.attributes()
	s.PredicateFunc = func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
		return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attrs, IndexFields: k.IndexFields}
	}
	options := &generic.StoreOptions{RESTOptions: prefixed{b.Options, k.Prefix}, AttrFunc: attrs}
	k.addIndexes(options)
	if err := s.CompleteWithOptions(options); err != nil {
		return nil, err
	}
	return s, nil
}

// setHooks gives the typed hooks of the declaration to the store.
func (k *Kind[T]) setHooks(s *registry.Store) {
	if k.TTL != nil {
		s.TTLFunc = func(obj runtime.Object, _ uint64, _ bool) (uint64, error) {
			return uint64(math.Ceil(k.TTL(typed[T](obj)).Seconds())), nil
		}
	}
	if k.BeginCreate != nil {
		s.BeginCreate = func(
			ctx context.Context, obj runtime.Object, o *metav1.CreateOptions,
		) (registry.FinishFunc, error) {
			done, err := k.BeginCreate(ctx, typed[T](obj), o)
			return finish(done), err
		}
	}
	if k.BeginUpdate != nil {
		s.BeginUpdate = func(
			ctx context.Context, obj, old runtime.Object, o *metav1.UpdateOptions,
		) (registry.FinishFunc, error) {
			done, err := k.BeginUpdate(ctx, typed[T](obj), typed[T](old), o)
			return finish(done), err
		}
	}
	if k.AfterCreate != nil {
		s.AfterCreate = func(obj runtime.Object, o *metav1.CreateOptions) { k.AfterCreate(typed[T](obj), o) }
	}
	if k.AfterUpdate != nil {
		s.AfterUpdate = func(obj runtime.Object, o *metav1.UpdateOptions) { k.AfterUpdate(typed[T](obj), o) }
	}
	if k.AfterDelete != nil {
		s.AfterDelete = func(obj runtime.Object, o *metav1.DeleteOptions) { k.AfterDelete(typed[T](obj), o) }
	}
	if k.DeleteDuringUpdate != nil {
		s.ShouldDeleteDuringUpdate = func(ctx context.Context, _ string, obj, old runtime.Object) bool {
			return k.DeleteDuringUpdate(ctx, typed[T](obj), typed[T](old))
		}
	}
}

func finish(done func(context.Context, bool)) registry.FinishFunc {
	if done == nil {
		return func(context.Context, bool) {}
	}
	return done
}

// attributes returns the labels and fields that selectors use.
func (k *Kind[T]) attributes() storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		o, ok := obj.(any).(*T)
		if !ok {
			return nil, nil, fmt.Errorf("got a %T where %s are stored", obj, k.Name)
		}
		m := obj.(metav1.Object)
		set := fields.Set{}
		if k.Fields != nil {
			set = k.Fields(o)
		}
		set["metadata.name"] = m.GetName()
		if !k.ClusterScoped {
			set["metadata.namespace"] = m.GetNamespace()
		}
		return m.GetLabels(), set, nil
	}
}

// addIndexes makes the storage index watches and lists by the declared fields.
func (k *Kind[T]) addIndexes(options *generic.StoreOptions) {
	if len(k.IndexFields) == 0 {
		return
	}
	options.TriggerFunc = storage.IndexerFuncs{}
	indexers := cache.Indexers{}
	for _, name := range k.IndexFields {
		value := func(obj runtime.Object) string { return k.Fields(typed[T](obj))[name] }
		// The storage takes one trigger; the first field is it.
		if len(options.TriggerFunc) == 0 {
			options.TriggerFunc[name] = value
		}
		indexers[storage.FieldIndex(name)] = func(obj any) ([]string, error) {
			o, ok := obj.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("index %s: got a %T", name, obj)
			}
			return []string{value(o)}, nil
		}
	}
	options.Indexers = &indexers
}

// prefixed replaces the key prefix that the server would choose.
type prefixed struct {
	generic.RESTOptionsGetter
	prefix string
}

func (p prefixed) GetRESTOptions(r schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := p.RESTOptionsGetter.GetRESTOptions(r, example)
	if err == nil && p.prefix != "" {
		options.ResourcePrefix = p.prefix
	}
	return options, err
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// tables returns the printer of the kind.
func (k *Kind[T]) tables(now func() time.Time) rest.TableConvertor {
	if now == nil {
		now = time.Now
	}
	if k.Row == nil {
		return &tableConvertor{
			columns: []metav1.TableColumnDefinition{Name(), Age()},
			now:     now,
			row: func(obj runtime.Object, now time.Time) ([]any, error) {
				m, err := meta.Accessor(obj)
				if err != nil {
					return nil, err
				}
				return []any{m.GetName(), Since(m.GetCreationTimestamp(), now)}, nil
			},
		}
	}
	return &tableConvertor{
		columns: k.Columns,
		now:     now,
		row: func(obj runtime.Object, now time.Time) ([]any, error) {
			o, ok := obj.(any).(*T)
			if !ok {
				return nil, fmt.Errorf("cannot print a %T as one of %s", obj, k.Name)
			}
			return k.Row(o, now), nil
		},
	}
}
