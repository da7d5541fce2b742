package resource

import (
	"context"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// strategy is the generic registry's strategy for writes to the main resource.
type strategy[T any] struct {
	runtime.ObjectTyper
	names.NameGenerator
	BoundedMistakes
	kind *Kind[T]
}

func (s strategy[T]) NamespaceScoped() bool { return !s.kind.ClusterScoped }

func (s strategy[T]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	o := typed[T](obj)
	if s.kind.Status != nil && !s.kind.Status.KeepOnCreate {
		field := reflect.ValueOf(o).Elem().FieldByName("Status")
		field.SetZero()
		s.defaultAgain(o)
	}
	if s.kind.Generation {
		obj.(metav1.Object).SetGeneration(1)
	}
	if s.kind.Prepare != nil {
		s.kind.Prepare(ctx, o, nil)
	}
}

// defaultAgain restores defaults inside of a status that has just been cleared.
func (s strategy[T]) defaultAgain(o *T) {
	if s.kind.Default != nil {
		s.kind.Default(o)
	}
}

func (s strategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, was := typed[T](obj), typed[T](old)
	if s.kind.Status != nil {
		reflect.ValueOf(o).Elem().FieldByName("Status").Set(reflect.ValueOf(was).Elem().FieldByName("Status"))
	}
	if s.kind.Prepare != nil {
		s.kind.Prepare(ctx, o, was)
	}
	if s.kind.Generation && desiredChanged(o, was) {
		obj.(metav1.Object).SetGeneration(old.(metav1.Object).GetGeneration() + 1)
	}
}

// desiredChanged reports whether anything but type, metadata and status differs.
func desiredChanged[T any](a, b *T) bool {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		switch x.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !apiequality.Semantic.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			return true
		}
	}
	return false
}

func (s strategy[T]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	if s.kind.Validate == nil {
		return nil
	}
	return s.kind.Validate(ctx, typed[T](obj), nil)
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.kind.Validate == nil {
		return nil
	}
	return s.kind.Validate(ctx, typed[T](obj), typed[T](old))
}

func (s strategy[T]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.kind.Warnings == nil {
		return nil
	}
	return s.kind.Warnings(ctx, typed[T](obj), nil)
}

func (s strategy[T]) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.kind.Warnings == nil {
		return nil
	}
	return s.kind.Warnings(ctx, typed[T](obj), typed[T](old))
}

func (s strategy[T]) Canonicalize(runtime.Object) {}

func (s strategy[T]) AllowCreateOnUpdate(context.Context) bool { return s.kind.CreateOnUpdate }

func (s strategy[T]) AllowUnconditionalUpdate(context.Context) bool { return !s.kind.VersionedUpdate }

func (s strategy[T]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.kind.GarbageCollection == "" {
		return rest.DeleteDependents
	}
	return s.kind.GarbageCollection
}

func (s strategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	paths := s.kind.Reset
	if s.kind.Status != nil {
		paths = append([]fieldpath.Path{fieldpath.MakePathOrDie("status")}, paths...)
	}
	return s.kind.reset(paths)
}

// reset gives the same paths for every version in which the kind is served.
func (k *Kind[T]) reset(paths []fieldpath.Path) map[fieldpath.APIVersion]*fieldpath.Set {
	if len(paths) == 0 {
		return nil
	}
	sets := map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(k.GroupVersion.String()): fieldpath.NewSet(paths...),
	}
	for _, a := range k.Aliases {
		sets[fieldpath.APIVersion(a.gv.String())] = fieldpath.NewSet(paths...)
	}
	return sets
}

// gracefulStrategy is the strategy of kinds with GracefulDelete. It is a type of its own because
// the generic registry recognizes such a strategy by the method.
type gracefulStrategy[T any] struct{ strategy[T] }

func (s gracefulStrategy[T]) CheckGracefulDelete(
	ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions,
) bool {
	return s.kind.GracefulDelete(ctx, typed[T](obj), options)
}

// statusStrategy is the generic registry's strategy for writes to the status subresource.
type statusStrategy[T any] struct{ strategy[T] }

func (s statusStrategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, was := typed[T](obj), typed[T](old)
	x, y := reflect.ValueOf(o).Elem(), reflect.ValueOf(was).Elem()
	for i := range x.NumField() {
		switch x.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
		default:
			x.Field(i).Set(y.Field(i))
		}
	}
	m, n := obj.(metav1.Object), old.(metav1.Object)
	m.SetDeletionTimestamp(n.GetDeletionTimestamp())
	m.SetOwnerReferences(n.GetOwnerReferences())
	if s.kind.Status.Prepare != nil {
		s.kind.Status.Prepare(ctx, o, was)
	}
}

func (s statusStrategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.kind.Status.Validate == nil {
		return nil
	}
	return s.kind.Status.Validate(ctx, typed[T](obj), typed[T](old))
}

func (s statusStrategy[T]) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.kind.Status.Warnings == nil {
		return nil
	}
	return s.kind.Status.Warnings(ctx, typed[T](obj), typed[T](old))
}

func (s statusStrategy[T]) AllowCreateOnUpdate(context.Context) bool { return false }

func (s statusStrategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	paths := []fieldpath.Path{
		fieldpath.MakePathOrDie("metadata", "deletionTimestamp"),
		fieldpath.MakePathOrDie("metadata", "ownerReferences"),
	}
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		switch t.Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
		default:
			paths = append(paths, fieldpath.MakePathOrDie(jsonName(t.Field(i))))
		}
	}
	return s.kind.reset(append(paths, s.kind.Status.Reset...))
}
