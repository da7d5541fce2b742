package rawlist

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
)

// schemaOf is a schema with some fields.
func schemaOf(fields int, change func(*structuralschema.Structural)) *structuralschema.Structural {
	s := &structuralschema.Structural{Generic: structuralschema.Generic{Type: "object"},
		Properties: map[string]structuralschema.Structural{}}
	for i := range fields {
		one := structuralschema.Structural{Generic: structuralschema.Generic{Type: "string", Description: "A field."},
			ValueValidation: &structuralschema.ValueValidation{}}
		s.Properties[fmt.Sprintf("field%d", i)] = structuralschema.Structural{
			Generic: structuralschema.Generic{Type: "array"}, Items: &one}
	}
	if change != nil {
		change(s)
	}
	return s
}

// TestFingerprints: all contents of a schema count, and nothing else.
func TestFingerprints(t *testing.T) {
	with := func(change func(*structuralschema.Structural)) func() any {
		return func() any { return map[string]*structuralschema.Structural{"v1": schemaOf(20, change)} }
	}
	seen := map[string]string{}
	for name, made := range map[string]func() any{
		"as it is":     with(nil),
		"another type": with(func(s *structuralschema.Structural) { s.Type = "array" }),
		"a default": with(func(s *structuralschema.Structural) {
			s.Default.Object = map[string]any{"a": int64(1), "b": []any{"x"}}
		}),
		"another number": with(func(s *structuralschema.Structural) {
			s.Default.Object = map[string]any{"a": int64(2), "b": []any{"x"}}
		}),
		"a float": with(func(s *structuralschema.Structural) {
			s.Default.Object = map[string]any{"a": float64(1), "b": []any{"x"}}
		}),
		"nullable":   with(func(s *structuralschema.Structural) { s.Nullable = true }),
		"preserving": with(func(s *structuralschema.Structural) { s.XPreserveUnknownFields = true }),
		"embedding":  with(func(s *structuralschema.Structural) { s.XEmbeddedResource = true }),
		"additional": with(func(s *structuralschema.Structural) {
			s.AdditionalProperties = &structuralschema.StructuralOrBool{Bool: true}
		}),
		"a field less": with(func(s *structuralschema.Structural) { delete(s.Properties, "field7") }),
		"deep down": with(func(s *structuralschema.Structural) {
			s.Properties["field7"].Items.Default.Object = "x"
		}),
		"exchanged": with(func(s *structuralschema.Structural) {
			s.Properties["field7"].Items.Default.Object, s.Properties["field8"].Items.Type = "x", "x"
		}),
		"of another version": func() any { return map[string]*structuralschema.Structural{"v2": schemaOf(20, nil)} },
		"none":               func() any { return map[string]*structuralschema.Structural{"v1": nil} },
		"no versions":        func() any { return map[string]*structuralschema.Structural(nil) },
		"a version":          func() any { return schema.GroupVersion{Group: "a", Version: "bc"} },
		"another version":    func() any { return schema.GroupVersion{Group: "ab", Version: "c"} },
	} {
		p := printer{}
		first := p.of(made())
		if again := p.of(made()); again != first {
			t.Errorf("%s: two that are equal have %x and %x", name, first, again)
		}
		if other, ok := seen[first]; ok {
			t.Errorf("%s and %s have the same", name, other)
		}
		seen[first] = name
	}
	codec := func(version string) runtime.Codec {
		gv := schema.GroupVersion{Group: "sea.example.com", Version: version}
		c := unstructured.UnstructuredJSONScheme
		return versioning.NewCodec(c, c, nil, nil, nil, nil, gv, gv, "test")
	}
	if v1, v2 := fingerprint(codec("v1")), fingerprint(codec("v2")); bytes.Equal(v1, v2) ||
		!bytes.Equal(v1, fingerprint(codec("v1"))) {
		t.Errorf("codecs of two versions have %x and %x", v1, v2)
	}
	around := structuralschema.Structural{}
	around.Items = &around
	if first := (printer{}).of(&around); (printer{}).of(&around) != first {
		t.Error("what leads back to itself changes")
	}
}

// of is the fingerprint of any value.
func (p printer) of(v any) string {
	sum := printer{}.sum(reflect.ValueOf(&v).Elem())
	return string(sum[:])
}

// BenchmarkFingerprint is for a schema of 10,000 nodes, as large definitions have.
func BenchmarkFingerprint(b *testing.B) {
	schemas := map[string]*structuralschema.Structural{"v1": schemaOf(5000, nil)}
	for b.Loop() {
		printer{}.of(schemas)
	}
}
