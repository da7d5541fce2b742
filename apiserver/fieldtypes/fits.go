package fieldtypes

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// scalarTypes are the types that are written as one scalar, with any value.
var scalarTypes = map[reflect.Type]schema.Scalar{
	reflect.TypeFor[metav1.Time]():       schema.String,
	reflect.TypeFor[metav1.MicroTime]():  schema.String,
	reflect.TypeFor[metav1.Duration]():   schema.String,
	reflect.TypeFor[resource.Quantity](): schema.String,
}

// fits reports whether objects of a Go type need no check against their type in a merge schema:
// their fields are all declared, and of the right kind. Two things depend on values:
//
//   - Raw JSON may be none, and an IntOrString of a third type: walking over them panics. No type
//     with these fits, except in managed fields: the live object's are not walked, since the new
//     object has none. So pods and services are checked.
//   - An element of a list may lack one of its keys. Comparing finds that, too, but not in an
//     atomic part. So a list in an atomic part fits if its elements always have their keys.
func fits(s *schema.Schema, name string, t reflect.Type) bool {
	f := fitting{schema: s, seen: map[fittingPair]bool{}}
	return f.fits(schema.TypeRef{NamedType: &name}, t, false)
}

type fitting struct {
	schema *schema.Schema
	seen   map[fittingPair]bool // types may contain themselves
}

type fittingPair struct {
	name   string
	t      reflect.Type
	atomic bool
}

func (f *fitting) fits(ref schema.TypeRef, t reflect.Type, atomic bool) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if ref.NamedType != nil {
		pair := fittingPair{*ref.NamedType, t, atomic}
		if f.seen[pair] {
			return true // a misfit is found at the first visit
		}
		f.seen[pair] = true
	}
	atom, ok := f.schema.Resolve(ref)
	if !ok {
		return false
	}
	if as, ok := scalarTypes[t]; ok {
		return isScalar(atom, as)
	}
	entry := value.TypeReflectEntryOf(t)
	if entry.CanConvertToUnstructured() {
		return false
	}
	switch t.Kind() {
	case reflect.String:
		return isScalar(atom, schema.String)
	case reflect.Bool:
		return isScalar(atom, schema.Boolean)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64:
		return isScalar(atom, schema.Numeric)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return isScalar(atom, schema.String)
		}
		return f.fitsList(atom, t, atomic)
	case reflect.Map:
		if t.Key().Kind() != reflect.String || !isMap(atom) || len(atom.Map.Fields) > 0 {
			return false
		}
		return f.fits(atom.Map.ElementType, t.Elem(), atomic || atom.Map.ElementRelationship == schema.Atomic)
	case reflect.Struct:
		return isMap(atom) && f.fitsFields(atom.Map, t, entry, atomic || atom.Map.ElementRelationship == schema.Atomic)
	default:
		return false
	}
}

func (f *fitting) fitsList(atom schema.Atom, t reflect.Type, atomic bool) bool {
	if atom.List == nil || atom.Map != nil || atom.Scalar != nil {
		return false
	}
	if t.Elem() == reflect.TypeFor[metav1.ManagedFieldsEntry]() {
		return atom.List.ElementRelationship == schema.Atomic // so that its elements are not walked
	}
	if atom.List.ElementRelationship == schema.Associative {
		if keys := atom.List.Keys; len(keys) > 0 && atomic && !alwaysHas(t.Elem(), keys) {
			return false
		} else if len(keys) == 0 && t.Elem().Kind() != reflect.String && t.Elem().Kind() != reflect.Int32 {
			return false // an element of a set is a scalar, and not null
		}
	}
	return f.fits(atom.List.ElementType, t.Elem(), atomic || atom.List.ElementRelationship == schema.Atomic)
}

// alwaysHas reports whether elements of a list have all their keys, with any value.
func alwaysHas(element reflect.Type, keys []string) bool {
	if element.Kind() != reflect.Struct {
		return false
	}
	fields, zero := value.TypeReflectEntryOf(element).Fields(), reflect.New(element).Elem()
	return !slices.ContainsFunc(keys, func(key string) bool {
		field, ok := fields[key]
		return !ok || field.GetFrom(zero).Kind() == reflect.Pointer || field.CanOmit(field.GetFrom(zero))
	})
}

func (f *fitting) fitsFields(m *schema.Map, t reflect.Type, entry *value.TypeReflectCacheEntry, atomic bool) bool {
	zero := reflect.New(t).Elem()
	for name, field := range entry.Fields() {
		ref := m.ElementType
		if declared, ok := m.FindField(name); ok {
			ref = declared.Type
		} else if ref == (schema.TypeRef{}) {
			return false
		}
		if !f.fits(ref, field.GetFrom(zero).Type(), atomic) {
			return false
		}
	}
	return true
}

func isScalar(a schema.Atom, s schema.Scalar) bool {
	return a.Map == nil && a.List == nil && a.Scalar != nil && (*a.Scalar == s || *a.Scalar == schema.Untyped)
}

func isMap(a schema.Atom) bool { return a.Map != nil && a.List == nil && a.Scalar == nil }
