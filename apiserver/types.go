package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/barque/barque/apiserver/openapi"
)

// fieldTypes tells server-side apply how the fields of a kind merge. The schema that client-go
// carries for its apply configurations knows every kind that is stored; what it does not know
// (Scale, and objects that are only asked) is treated by its shape.
type fieldTypes struct {
	scheme  *runtime.Scheme
	schema  *schema.Schema
	known   managedfields.TypeConverter
	deduced managedfields.TypeConverter
}

func newFieldTypes(scheme *runtime.Scheme) (*fieldTypes, error) {
	s, err := openapi.MergeSchema()
	if err != nil {
		return nil, err
	}
	return &fieldTypes{
		scheme:  scheme,
		schema:  s,
		known:   applyconfigurations.NewTypeConverter(scheme),
		deduced: managedfields.NewDeducedTypeConverter(),
	}, nil
}

// ObjectToTyped implements managedfields.TypeConverter. The walk over the fields panics at raw data
// that are not JSON, which a body in protobuf can bring; validation, which comes later, refuses
// them.
func (t *fieldTypes) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (_ *typed.TypedValue, err error) {
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("the fields of the object cannot be read: %v", what)
		}
	}()
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
func (t *fieldTypes) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	return t.known.TypedToObject(v)
}
