package resource

import (
	"context"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Scale declares the scale subresource, autoscaling/v1 Scale. All three functions are required.
type Scale[T any] struct {
	// Replicas points to the desired number of replicas in obj, which is defaulted.
	Replicas func(obj *T) *int32
	// Observed is the number of replicas in the status.
	Observed func(obj *T) int32
	// Selector of the replicas, in the form of a label query.
	Selector func(obj *T) (string, error)
}

// scaleStorage serves the scale subresource over the storage of the main resource.
type scaleStorage[T any] struct {
	main *Storage
	kind *Kind[T]
}

var (
	_ rest.Patcher                  = (*scaleStorage[any])(nil)
	_ rest.GroupVersionKindProvider = (*scaleStorage[any])(nil)
)

func (k *Kind[T]) buildScale(main *Storage) rest.Storage {
	return &scaleStorage[T]{main: main, kind: k}
}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (s *scaleStorage[T]) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// New implements rest.Storage.
func (s *scaleStorage[T]) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy implements rest.Storage. The store is the main resource's to destroy.
func (s *scaleStorage[T]) Destroy() {}

// ConvertToTable implements rest.TableConvertor.
func (s *scaleStorage[T]) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return scaleTable.ConvertToTable(ctx, obj, options)
}

// scaleTable prints a Scale of any kind.
var scaleTable = &tableConvertor{
	columns: []metav1.TableColumnDefinition{
		Name(), Column("Desired", "integer", "Number of replicas that are wanted."),
		Column("Available", "integer", "Number of replicas that were observed."), Age(),
	},
	now: time.Now,
	row: func(obj runtime.Object, now time.Time) ([]any, error) {
		scale, ok := obj.(*autoscalingv1.Scale)
		if !ok {
			return nil, fmt.Errorf("cannot print a %T as a Scale", obj)
		}
		return []any{scale.Name, int64(scale.Spec.Replicas), int64(scale.Status.Replicas),
			Since(scale.CreationTimestamp, now)}, nil
	},
}

// Get implements rest.Getter.
func (s *scaleStorage[T]) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.main.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return s.fromObject(obj)
}

// Update implements rest.Updater by updating the object that is scaled.
func (s *scaleStorage[T]) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	obj, _, err := s.main.Update(ctx, name,
		&scaledObject[T]{storage: s, name: name, scale: info},
		s.validateCreate(create), s.validateUpdate(update), false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := s.fromObject(obj)
	return scale, false, err
}

// validateCreate and validateUpdate show admission the Scale that the client wrote.
func (s *scaleStorage[T]) validateCreate(f rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		scale, err := s.fromObject(obj)
		if err != nil {
			return err
		}
		return f(ctx, scale)
	}
}

func (s *scaleStorage[T]) validateUpdate(f rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		scale, err := s.fromObject(obj)
		if err != nil {
			return err
		}
		was, err := s.fromObject(old)
		if err != nil {
			return err
		}
		return f(ctx, scale, was)
	}
}

func (s *scaleStorage[T]) fromObject(obj runtime.Object) (*autoscalingv1.Scale, error) {
	o, m := typed[T](obj), obj.(metav1.Object)
	selector, err := s.kind.Scale.Selector(o)
	if err != nil {
		return nil, fmt.Errorf("selector of %s %q: %w", s.kind.Singular, m.GetName(), err)
	}
	managed, err := s.managedFields(m.GetManagedFields()).ToSubresource()
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s %q: %w", s.kind.Singular, m.GetName(), err)
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              m.GetName(),
			Namespace:         m.GetNamespace(),
			UID:               m.GetUID(),
			ResourceVersion:   m.GetResourceVersion(),
			CreationTimestamp: m.GetCreationTimestamp(),
			ManagedFields:     managed,
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: *s.kind.Scale.Replicas(o)},
		Status: autoscalingv1.ScaleStatus{Replicas: s.kind.Scale.Observed(o), Selector: selector},
	}, nil
}

// managedFields translates the ownership of spec.replicas between the object and its Scale.
func (s *scaleStorage[T]) managedFields(entries []metav1.ManagedFieldsEntry) *managedfields.ScaleHandler {
	gv := s.kind.GroupVersion
	mappings := managedfields.ResourcePathMappings{gv.String(): fieldpath.MakePathOrDie("spec", "replicas")}
	for _, a := range s.kind.Aliases {
		mappings[a.gv.String()] = fieldpath.MakePathOrDie("spec", "replicas")
	}
	return managedfields.NewScaleHandler(entries, gv, mappings)
}

// scaledObject turns an update of the Scale into one of the object.
type scaledObject[T any] struct {
	storage *scaleStorage[T]
	name    string
	scale   rest.UpdatedObjectInfo
}

// Preconditions implements rest.UpdatedObjectInfo.
func (u *scaledObject[T]) Preconditions() *metav1.Preconditions { return u.scale.Preconditions() }

// UpdatedObject implements rest.UpdatedObjectInfo.
func (u *scaledObject[T]) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	s := u.storage
	obj := old.DeepCopyObject()
	m := obj.(metav1.Object)
	was, err := s.fromObject(old)
	if err != nil {
		return nil, err
	}
	updated, err := u.scale.UpdatedObject(ctx, was)
	if err != nil {
		return nil, err
	}
	scale, ok := updated.(*autoscalingv1.Scale)
	if !ok {
		return nil, errors.NewBadRequest(fmt.Sprintf("expected a Scale, got a %T", updated))
	}
	if errs := validateScale(scale); len(errs) > 0 {
		return nil, errors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(), u.name, errs)
	}
	if scale.ResourceVersion != "" {
		// An empty one requests an unconditional update.
		m.SetResourceVersion(scale.ResourceVersion)
	}
	*s.kind.Scale.Replicas(typed[T](obj)) = scale.Spec.Replicas

	managed, err := s.managedFields(m.GetManagedFields()).ToParent(scale.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s %q: %w", s.kind.Singular, u.name, err)
	}
	m.SetManagedFields(managed)
	return obj, nil
}

func validateScale(scale *autoscalingv1.Scale) field.ErrorList {
	if scale.Spec.Replicas < 0 {
		return field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0")}
	}
	return nil
}
