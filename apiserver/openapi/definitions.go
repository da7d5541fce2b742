package openapi

import (
	"reflect"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// definer builds the definition of each type that is reachable from the types it is given.
type definer struct {
	ref    common.ReferenceCallback
	merges *schema.Schema
	out    map[string]common.OpenAPIDefinition
}

// The methods by which types describe themselves.
type (
	schemaTyper   interface{ OpenAPISchemaType() []string }
	schemaFormat  interface{ OpenAPISchemaFormat() string }
	oneOfTyper    interface{ OpenAPIV3OneOfTypes() []string }
	swaggerDocker interface{ SwaggerDoc() map[string]string }
)

// key is the name by which the builders of kube-openapi look up the definition of a type.
func key(t reflect.Type) string { return util.GetCanonicalTypeName(reflect.New(t).Interface()) }

// define adds the definition of t, a struct, and of everything it refers to.
func (d *definer) define(t reflect.Type) {
	name := key(t)
	if _, ok := d.out[name]; ok {
		return
	}
	d.out[name] = common.OpenAPIDefinition{} // a type may refer to itself
	def, dependencies := d.structure(t)
	def.Description = docs(t)[""]
	names := make([]string, 0, len(dependencies))
	for n := range dependencies {
		names = append(names, n)
	}
	d.out[name] = common.OpenAPIDefinition{Schema: def, Dependencies: names}
}

func (d *definer) structure(t reflect.Type) (spec.Schema, map[string]bool) {
	value := reflect.New(t).Interface()
	if typer, ok := value.(schemaTyper); ok {
		s := spec.Schema{SchemaProps: spec.SchemaProps{Type: typer.OpenAPISchemaType()}}
		if f, ok := value.(schemaFormat); ok {
			s.Format = f.OpenAPISchemaFormat()
		}
		return d.oneOf(value, s), nil
	}
	s := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	if _, custom := value.(interface{ MarshalJSON() ([]byte, error) }); custom {
		return s, nil // its JSON is not its fields, as with RawExtension
	}
	dependencies := map[string]bool{}
	s.Properties = map[string]spec.Schema{}
	merge := d.mergeOf(key(t))
	d.fields(t, &s, dependencies, merge)
	if merge != nil && merge.ElementRelationship == schema.Atomic {
		s.AddExtension("x-kubernetes-map-type", "atomic")
	}
	return s, dependencies
}

// oneOf keeps a fact that v3 shows better than v2: that a value may be of several types.
func (d *definer) oneOf(value any, v2 spec.Schema) spec.Schema {
	many, ok := value.(oneOfTyper)
	if !ok {
		return v2
	}
	v3 := spec.Schema{SchemaProps: spec.SchemaProps{Format: v2.Format}}
	for _, t := range many.OpenAPIV3OneOfTypes() {
		v3.OneOf = append(v3.OneOf, spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{t}}})
	}
	return common.EmbedOpenAPIDefinitionIntoV2Extension(
		common.OpenAPIDefinition{Schema: v3}, common.OpenAPIDefinition{Schema: v2}).Schema
}

// fields adds the fields of t to s; fields of embedded structs without a name of their own become
// fields of s.
func (d *definer) fields(t reflect.Type, s *spec.Schema, dependencies map[string]bool, merge *schema.Map) {
	doc := docs(t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			if embedded := deref(f.Type); f.Anonymous && embedded.Kind() == reflect.Struct {
				d.fields(embedded, s, dependencies, merge)
			}
			continue
		}
		p := d.value(f.Type, dependencies)
		p.Description = doc[name]
		if strategy := f.Tag.Get("patchStrategy"); strategy != "" {
			p.AddExtension("x-kubernetes-patch-strategy", strategy)
		}
		if mergeKey := f.Tag.Get("patchMergeKey"); mergeKey != "" {
			p.AddExtension("x-kubernetes-patch-merge-key", mergeKey)
		}
		addMerge(&p, merge, name)
		s.Properties[name] = p
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") &&
			f.Type.Kind() != reflect.Pointer {
			s.Required = append(s.Required, name)
		}
	}
}

// value is the schema of a field or element of type t.
func (d *definer) value(t reflect.Type, dependencies map[string]bool) spec.Schema {
	t = deref(t)
	switch t.Kind() {
	case reflect.Struct:
		d.define(t)
		dependencies[key(t)] = true
		return spec.Schema{SchemaProps: spec.SchemaProps{Ref: d.ref(key(t))}}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return *spec.StrFmtProperty("byte")
		}
		item := d.value(t.Elem(), dependencies)
		return *spec.ArrayProperty(&item)
	case reflect.Map:
		item := d.value(t.Elem(), dependencies)
		return *spec.MapProperty(&item)
	case reflect.Bool:
		return *spec.BooleanProperty()
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Uint:
		return *spec.Int64Property()
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return *spec.Int32Property()
	case reflect.Float32, reflect.Float64:
		return *spec.Float64Property()
	case reflect.Interface:
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	}
	return *spec.StringProperty()
}

// mergeOf looks a structure up in the merge schema; nil when it is not there.
func (d *definer) mergeOf(name string) *schema.Map {
	if t, ok := d.merges.FindNamedType(name); ok {
		return t.Map
	}
	return nil
}

// addMerge describes how a list or map is merged.
func addMerge(p *spec.Schema, merge *schema.Map, name string) {
	if merge == nil {
		return
	}
	f, ok := merge.FindField(name)
	if !ok {
		return
	}
	if list := f.Type.Inlined.List; list != nil {
		switch {
		case list.ElementRelationship == schema.Associative && len(list.Keys) > 0:
			p.AddExtension("x-kubernetes-list-type", "map")
			p.AddExtension("x-kubernetes-list-map-keys", list.Keys)
		case list.ElementRelationship == schema.Associative:
			p.AddExtension("x-kubernetes-list-type", "set")
		default:
			p.AddExtension("x-kubernetes-list-type", "atomic")
		}
	}
	if m := f.Type.Inlined.Map; m != nil && m.ElementRelationship == schema.Atomic {
		p.AddExtension("x-kubernetes-map-type", "atomic")
	}
}

func docs(t reflect.Type) map[string]string {
	if d, ok := reflect.New(t).Interface().(swaggerDocker); ok {
		return d.SwaggerDoc()
	}
	return nil
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}
