package schemas

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/barque/barque/internal/needs"
)

// all returns the names of the models in the binary.
func all(t *testing.T) []string {
	t.Helper()
	files, err := embedded.ReadDir("files")
	if err != nil {
		t.Fatal(err)
	}
	var models []string
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), suffix)
		if !ok {
			continue
		}
		of, err := read(name, packedReference)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for model := range of {
			models = append(models, model)
		}
	}
	return models
}

// Every definition can be read, and every reference leads to one.
func TestEveryDefinition(t *testing.T) {
	if !Built() {
		needs.Missing(t, "the schemas (`make schemas`)", "that the schemas in the binary are whole")
	}
	models := all(t)
	if len(models) < 1000 {
		t.Errorf("only %d definitions", len(models))
	}
	definitions := map[string]common.OpenAPIDefinition{}
	if err := Add(definitions, "#/elsewhere/", models...); err != nil {
		t.Fatal(err)
	}
	var look func(model string, s *spec.Schema)
	look = func(model string, s *spec.Schema) {
		if to := s.Ref.String(); to != "" {
			name, ok := strings.CutPrefix(to, "#/elsewhere/")
			if _, known := definitions[name]; !ok || !known {
				t.Errorf("%s refers to %q", model, to)
			}
			if !slices.Contains(definitions[model].Dependencies, name) {
				t.Errorf("%s does not depend on %s", model, name)
			}
		}
		for _, p := range s.Properties {
			look(model, &p)
		}
		for _, p := range s.AllOf {
			look(model, &p)
		}
		if s.Items != nil {
			look(model, s.Items.Schema)
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			look(model, s.AdditionalProperties.Schema)
		}
	}
	for model, d := range definitions {
		look(model, &d.Schema)
	}
}

// Only the requested model, and the ones that it refers to, are added; existing ones are kept.
func TestAdd(t *testing.T) {
	definitions := map[string]common.OpenAPIDefinition{
		"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {Schema: *spec.StringProperty()},
	}
	err := Add(definitions, "#/", "io.k8s.api.core.v1.ConfigMap", "io.k8s.api.core.v1.None", "none.at.all", "None")
	if !Built() {
		if !errors.Is(err, ErrNotBuilt) {
			t.Errorf("without schemas: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(definitions) != 2 ||
		len(definitions["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"].Schema.Properties) > 0 {
		t.Errorf("%d definitions: %v", len(definitions), definitions)
	}
}

// The parts that differ in version 2 come back as they were.
func TestPack(t *testing.T) {
	v2 := *spec.StringProperty()
	other := func(ref common.ReferenceCallback) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref("p.U")}}
	}
	files, err := Pack(func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		return map[string]common.OpenAPIDefinition{"p.T": common.EmbedOpenAPIDefinitionIntoV2Extension(
			common.OpenAPIDefinition{
				Schema: spec.Schema{SchemaProps: spec.SchemaProps{OneOf: []spec.Schema{v2, other(ref)}}}},
			common.OpenAPIDefinition{Schema: v2})}
	})
	if err != nil || len(files) != 1 || len(files["p"+suffix]) == 0 {
		t.Fatal(err, files)
	}
	of, err := decode(files["p"+suffix], "#/x/")
	if err != nil {
		t.Fatal(err)
	}
	d, err := of["p.T"].definition()
	if err != nil {
		t.Fatal(err)
	}
	got, ok := d.Schema.Extensions[common.ExtensionV2Schema].(spec.Schema)
	if !ok || got.Type[0] != "string" || len(d.Schema.OneOf) != 2 || d.Schema.OneOf[1].Ref.String() != "#/x/p.U" {
		t.Errorf("%+v", d.Schema)
	}
}
