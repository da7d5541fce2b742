package resource

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Action declares a resource that is answered at its creation and never stored, such
// as TokenReview.
type Action[T any] struct {
	GroupVersion  schema.GroupVersion
	Name          string
	Singular      string
	ClusterScoped bool
	Default       func(obj *T)
	// Do answers obj, which the caller owns alone.
	Do func(ctx context.Context, obj *T, options *metav1.CreateOptions) (*T, error)
}

// GroupVersionResource implements Resource.
func (a *Action[T]) GroupVersionResource() schema.GroupVersionResource {
	return a.GroupVersion.WithResource(a.Name)
}

// AddToScheme implements Resource.
func (a *Action[T]) AddToScheme(scheme *runtime.Scheme) error {
	if _, ok := any(new(T)).(runtime.Object); !ok || a.Do == nil || a.Name == "" || a.Singular == "" {
		return fmt.Errorf("action %q: an object type, Name, Singular and Do are required", a.Name)
	}
	example := object(new(T))
	scheme.AddKnownTypes(a.GroupVersion, example)
	metav1.AddToGroupVersion(scheme, a.GroupVersion)
	addInternal(scheme, a.GroupVersion, example)
	if a.Default != nil {
		scheme.AddTypeDefaultingFunc(example, func(obj any) { a.Default(obj.(*T)) })
	}
	return nil
}

// Build implements Resource.
func (a *Action[T]) Build(Builder) ([]Installation, error) {
	return []Installation{{
		GroupVersion: a.GroupVersion,
		Storage:      map[string]rest.Storage{a.Name: &actionStorage[T]{a}},
	}}, nil
}

type actionStorage[T any] struct{ action *Action[T] }

var (
	_ rest.Creater              = (*actionStorage[any])(nil)
	_ rest.Scoper               = (*actionStorage[any])(nil)
	_ rest.SingularNameProvider = (*actionStorage[any])(nil)
)

// New implements rest.Storage.
func (s *actionStorage[T]) New() runtime.Object { return object(new(T)) }

// Destroy implements rest.Storage; there is nothing to destroy.
func (s *actionStorage[T]) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (s *actionStorage[T]) NamespaceScoped() bool { return !s.action.ClusterScoped }

// GetSingularName implements rest.SingularNameProvider.
func (s *actionStorage[T]) GetSingularName() string { return s.action.Singular }

// Create implements rest.Creater.
func (s *actionStorage[T]) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	answer, err := s.action.Do(ctx, typed[T](obj), options)
	if err != nil {
		return nil, err
	}
	return object(answer), nil
}
