package configfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Kind is the kind of the object in a file, and the versions of it that are read, the recommended
// one first.
type Kind struct {
	Name        string
	APIVersions []string
	// Optional is set if the file may leave kind and apiVersion out.
	Optional bool
}

// errEmpty is returned for a file without any content.
var errEmpty = errors.New("it is empty")

// wanted is the advice in errors about a file's head.
func (k Kind) wanted() string {
	return fmt.Sprintf("want apiVersion: %s and kind: %s", k.APIVersions[0], k.Name)
}

// Check returns an error in plain words unless the content is YAML with an object of this kind and
// a known version. The decoders of Kubernetes name their own types there, or quote the file.
func (k Kind) Check(data []byte) error {
	var content any
	if err := yaml.Unmarshal(data, &content); err != nil {
		return Plain(err)
	}
	switch content.(type) {
	case nil:
		return fmt.Errorf("%w: %s", errEmpty, k.wanted())
	case map[string]any:
	default:
		return errors.New("it has no fields: " + k.wanted())
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &head); err != nil {
		return errors.New("its apiVersion and kind are no text: " + k.wanted())
	}
	switch {
	case head.APIVersion == "" && head.Kind == "" && k.Optional:
		return nil
	case head.Kind == "":
		return errors.New("it has no kind: " + k.wanted())
	case head.APIVersion == "":
		return errors.New("it has no apiVersion: " + k.wanted())
	case head.Kind != k.Name || !slices.Contains(k.APIVersions, head.APIVersion):
		return fmt.Errorf("it has apiVersion: %s and kind: %s: %s", head.APIVersion, head.Kind, k.wanted())
	}
	return nil
}

// Parts of the errors of decoders, for which these have no types.
var (
	wrongType = regexp.MustCompile(
		`^json: cannot unmarshal (\w+)(?: \S+)? into Go struct field \w+\.(\S+) of type .*$`)
	typeOnly   = regexp.MustCompile(`^json: cannot unmarshal (\w+)(?: \S+)? into Go value of type .*$`)
	fieldTwice = regexp.MustCompile(`key ("[^"]*") already set in map`)
)

// Plain returns the error of a decoder in plain words: the field or line, and the next step.
func Plain(err error) error {
	text := strings.TrimPrefix(err.Error(), "strict decoding error: ")
	text = strings.TrimPrefix(text, "error converting YAML to JSON: ")
	text = strings.ReplaceAll(strings.TrimPrefix(text, "yaml: unmarshal errors:\n"), "\n", ";")
	text, isYAML := strings.CutPrefix(strings.TrimSpace(text), "yaml: ")
	text = strings.TrimPrefix(text, "json: ")
	switch {
	case strings.HasPrefix(text, "unknown field"):
		return fmt.Errorf("%s: correct its name, or take it out", text)
	case fieldTwice.MatchString(text):
		return errors.New(fieldTwice.ReplaceAllString(text, "the field $1 is there twice") + ": take one out")
	}
	if field := wrongType.FindStringSubmatch(err.Error()); field != nil {
		return fmt.Errorf("%s: it cannot be a value of the type %s: give another one", field[2], field[1])
	}
	if field := typeOnly.FindStringSubmatch(err.Error()); field != nil {
		return fmt.Errorf("it cannot be a value of the type %s: want an object with fields", field[1])
	}
	if isYAML {
		return fmt.Errorf("it is no YAML: %s: correct it there", text)
	}
	return fmt.Errorf("it cannot be decoded: %s: correct it there", text)
}
