// Package schemas carries the OpenAPI definitions of the built-in kinds inside the binary.
//
// Enumerations, defaults, required fields and list types stand in comments of k8s.io/api, where a
// program cannot see them. `make schemas` has upstream's generator read them, and packs the result
// into files/, a compressed file for each Go package (pack.go writes, this package reads).
// Definitions are decoded on demand, and not kept.
//
// A binary that was built without `make` has no definitions: ErrNotBuilt.
package schemas

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	suffix = ".json.zst"
	// packedReference precedes the names of models in the references of packed definitions.
	packedReference = "#/definitions/"
)

// ErrNotBuilt is returned when the binary was built without the definitions.
var ErrNotBuilt = errors.New(
	"this binary was built without the schemas of the built-in kinds: build it with `make build`")

//go:embed files
var embedded embed.FS

// packed is a definition in a file, which is a map of them by the names of their models.
type packed struct {
	Schema       json.RawMessage `json:"schema"`
	V2           *spec.Schema    `json:"v2,omitempty"` // for documents of version 2, where they differ
	Dependencies []string        `json:"dependencies,omitempty"`
}

func (p packed) definition() (common.OpenAPIDefinition, error) {
	d := common.OpenAPIDefinition{Dependencies: p.Dependencies}
	err := json.Unmarshal(p.Schema, &d.Schema)
	if p.V2 != nil {
		d.Schema.AddExtension(common.ExtensionV2Schema, *p.V2)
	}
	return d, err
}

// Built reports whether the binary has definitions.
func Built() bool {
	files, err := fs.Glob(embedded, "files/*"+suffix)
	return err == nil && len(files) > 0
}

// Hash changes with the definitions in the binary.
var Hash = sync.OnceValue(func() string {
	h := sha256.New()
	files, _ := embedded.ReadDir("files") // it is in the binary
	for _, f := range files {
		content, _ := embedded.ReadFile("files/" + f.Name())
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))
})

// Add adds the definitions of models, and of all models that they refer to, to definitions.
// Existing ones are kept, and so are names of models that no package in the binary has: the caller
// finds them missing. In references, the names of models follow the prefix.
//
// It returns ErrNotBuilt, or an error when the binary's own content cannot be read.
func Add(definitions map[string]common.OpenAPIDefinition, prefix string, models ...string) error {
	if !Built() {
		return ErrNotBuilt
	}
	packages := map[string]map[string]packed{}
	for len(models) > 0 {
		model := models[len(models)-1]
		models = models[:len(models)-1]
		if _, ok := definitions[model]; ok {
			continue
		}
		name := packageOf(model)
		of, ok := packages[name]
		if !ok {
			var err error
			if of, err = read(name, prefix); err != nil {
				return fmt.Errorf("schemas of %s: %w", name, err)
			}
			packages[name] = of
		}
		p, ok := of[model]
		if !ok {
			continue
		}
		definition, err := p.definition()
		if err != nil {
			return fmt.Errorf("schema of %s: %w", model, err)
		}
		definitions[model] = definition
		models = append(models, p.Dependencies...)
	}
	return nil
}

// packageOf returns the package part of a model's name.
func packageOf(model string) string { return model[:max(0, strings.LastIndexByte(model, '.'))] }

// read returns the definitions of a package; none if it is not in the binary.
func read(name, prefix string) (map[string]packed, error) {
	compressed, err := embedded.ReadFile("files/" + name + suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decode(compressed, prefix)
}

func decode(compressed []byte, prefix string) (map[string]packed, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	content, err := decoder.DecodeAll(compressed, nil)
	if err != nil {
		return nil, err
	}
	// Quotes are escaped inside strings, so that this is found in references only.
	content = bytes.ReplaceAll(content, []byte(`"$ref":"`+packedReference), []byte(`"$ref":"`+prefix))
	var definitions map[string]packed
	return definitions, json.Unmarshal(content, &definitions)
}

// Pack returns the content of the files for definitions: names to contents.
func Pack(get common.GetOpenAPIDefinitions) (map[string][]byte, error) {
	packages := map[string]map[string]packed{}
	for model, definition := range get(
		func(name string) spec.Ref { return spec.MustCreateRef(packedReference + name) }) {
		p := packed{Dependencies: definition.Dependencies}
		if v2, ok := definition.Schema.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
			p.V2 = &v2
			delete(definition.Schema.Extensions, common.ExtensionV2Schema)
		}
		var err error
		p.Schema, err = json.Marshal(definition.Schema)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", model, err)
		}
		of := packages[packageOf(model)]
		if of == nil {
			of = map[string]packed{}
			packages[packageOf(model)] = of
		}
		of[model] = p
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return nil, err
	}
	defer encoder.Close()
	files := map[string][]byte{}
	for name, of := range packages {
		content, err := json.Marshal(of)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		files[name+suffix] = encoder.EncodeAll(content, nil)
	}
	return files, nil
}
