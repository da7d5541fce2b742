package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// maxObjects bounds the objects of one file.
const maxObjects = 1000

// Parse reads the objects of a file: YAML documents, or JSON. Lists are taken apart. Namespaces and
// definitions come first, the rest in the file's order.
func Parse(content []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for n := 1; ; n++ {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		found, err := parseOne(text)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if out = append(out, found...); len(out) > maxObjects {
			return nil, fmt.Errorf("the file has more than %d objects: split it", maxObjects)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the file has no object; remove it to remove what was applied")
	}
	seen := map[Ref]bool{}
	for _, o := range out {
		ref := refOf(o)
		if seen[ref] {
			return nil, fmt.Errorf("%s is in the file twice", ref)
		}
		seen[ref] = true
	}
	slices.SortStableFunc(out, func(a, b *unstructured.Unstructured) int { return order(a) - order(b) })
	return out, nil
}

func parseOne(text []byte) ([]*unstructured.Unstructured, error) {
	var fields map[string]any
	if err := sigsyaml.UnmarshalStrict(text, &fields); err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		return nil, nil // comments
	}
	u := &unstructured.Unstructured{Object: fields}
	if !u.IsList() {
		return []*unstructured.Unstructured{u}, check(u)
	}
	list, err := u.ToList()
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for i := range list.Items {
		if err := check(&list.Items[i]); err != nil {
			return nil, fmt.Errorf("item %d: %w", i+1, err)
		}
		out = append(out, &list.Items[i])
	}
	return out, nil
}

func check(u *unstructured.Unstructured) error {
	switch {
	case u.GetAPIVersion() == "" || u.GetKind() == "":
		return errors.New("an object without apiVersion or kind")
	case u.GetName() == "":
		return fmt.Errorf("a %s without metadata.name", u.GetKind())
	case u.GroupVersionKind() == Kind:
		return errors.New("a Manifest cannot be in a file: the servers write it")
	}
	// Of an object of another cluster these would refuse or confuse the write.
	unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
	unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
	unstructured.RemoveNestedField(u.Object, "metadata", "uid")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(u.Object, "status")
	return nil
}

// order is less for what others need.
func order(u *unstructured.Unstructured) int {
	switch u.GroupVersionKind().GroupKind().String() {
	case "Namespace":
		return 0
	case "CustomResourceDefinition.apiextensions.k8s.io":
		return 1
	}
	return 2
}

func refOf(u *unstructured.Unstructured) Ref {
	return Ref{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}
}

// same reports whether two references are to one object, in whatever version of its group.
func same(a, b Ref) bool {
	return group(a) == group(b) && a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name
}

func group(r Ref) string {
	u := unstructured.Unstructured{Object: map[string]any{"apiVersion": r.APIVersion, "kind": r.Kind}}
	return u.GroupVersionKind().Group
}

// mark notes on an object for which Manifest it is applied.
func mark(u *unstructured.Unstructured, manifest string) {
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[Owner] = manifest
	u.SetAnnotations(annotations)
}

// inDefault gives an object of a namespaced kind the namespace default when it has none.
func inDefault(u *unstructured.Unstructured, namespaced bool) {
	switch {
	case !namespaced:
		u.SetNamespace("")
	case u.GetNamespace() == "":
		u.SetNamespace(metav1.NamespaceDefault)
	}
}
