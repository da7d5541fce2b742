// Package fieldtypes merges the fields of objects for server-side apply.
//
// It owns the choice of kinds whose objects need no check against the merge schema, which is most
// of the cost of a write's managed fields.
package fieldtypes

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/barque/barque/apiserver/openapi"
)

// Types has the merge rules of each kind's fields, for server-side apply. The schema that
// client-go carries for its apply configurations knows every kind that is stored; the kinds that it
// lacks (Scale, and objects that are not stored) are merged by their shape.
type Types struct {
	scheme  *runtime.Scheme
	schema  *schema.Schema
	known   managedfields.TypeConverter
	deduced managedfields.TypeConverter
	// fitting has the names of types whose objects need not be checked against the schema.
	fitting map[apischema.GroupVersionKind]string
}

// New returns the Types of the kinds of a scheme.
func New(scheme *runtime.Scheme) (*Types, error) {
	s, err := openapi.MergeSchema()
	if err != nil {
		return nil, err
	}
	t := &Types{
		scheme:  scheme,
		schema:  s,
		known:   applyconfigurations.NewTypeConverter(scheme),
		deduced: managedfields.NewDeducedTypeConverter(),
		fitting: map[apischema.GroupVersionKind]string{},
	}
	for kind, of := range scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal {
			continue
		}
		if name, err := scheme.ToOpenAPIDefinitionName(kind); err == nil && fits(s, name, of) {
			t.fitting[kind] = name
		}
	}
	return t, nil
}

// ObjectToTyped implements managedfields.TypeConverter. The walk over the fields panics at raw data
// that are not JSON, which a body in protobuf can bring; validation, which comes later, refuses
// them.
//
// It checks an object against the schema, but for one of a fitting type: every one of these fits,
// or comparing it, which comes next, fails. A patch may have no duplicates in lists, so that it is
// always checked.
func (t *Types) ObjectToTyped(
	obj runtime.Object, options ...typed.ValidationOptions,
) (_ *typed.TypedValue, err error) {
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("the fields of the object cannot be read: %v", what)
		}
	}()
	if name, ok := t.fitting[obj.GetObjectKind().GroupVersionKind()]; ok &&
		slices.Contains(options, typed.AllowDuplicates) {
		if _, ok := obj.(runtime.Unstructured); !ok {
			v, err := value.NewValueReflect(obj)
			if err != nil {
				return nil, err
			}
			//lint:ignore SA1019 checking is expensive, and needless here
			return typed.AsTypedUnvalidated(v, t.schema, schema.TypeRef{NamedType: &name}), nil
		}
	}
	name, err := t.scheme.ToOpenAPIDefinitionName(obj.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if _, ok := t.schema.FindNamedType(name); !ok {
		return t.deduced.ObjectToTyped(obj, options...)
	}
	return t.known.ObjectToTyped(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter.
func (t *Types) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	return t.known.TypedToObject(v)
}
