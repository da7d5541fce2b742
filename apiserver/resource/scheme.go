package resource

import (
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddToScheme implements Resource.
func (k *Kind[T]) AddToScheme(scheme *runtime.Scheme) error {
	if err := k.check(); err != nil {
		return err
	}
	example, list := object(new(T)), k.List
	scheme.AddKnownTypes(k.GroupVersion, example, list)
	metav1.AddToGroupVersion(scheme, k.GroupVersion)
	addInternal(scheme, k.GroupVersion, example, list)

	if k.Default != nil {
		scheme.AddTypeDefaultingFunc(example, func(obj any) { k.Default(obj.(*T)) })
	}
	selectable := k.selectable()
	if err := addFieldLabels(scheme, k.GroupVersion.WithKind(kindOf(example)), selectable, nil); err != nil {
		return err
	}
	for i := range k.Aliases {
		a := &k.Aliases[i]
		if err := a.addToScheme(scheme, example, list); err != nil {
			return fmt.Errorf("alias %s of %s: %w", a.gv, k.Name, err)
		}
		metav1.AddToGroupVersion(scheme, a.gv)
		if err := addFieldLabels(scheme, a.gv.WithKind(kindOf(a.object)), selectable, a.labels); err != nil {
			return err
		}
	}
	return nil
}

// check reports a declaration that cannot work, so that a mistake shows when the server starts
// (and in the test of the group) instead of at the first request.
func (k *Kind[T]) check() error {
	if k.GroupVersion.Version == "" || k.Name == "" || k.Singular == "" || k.List == nil {
		return fmt.Errorf("resource %q: GroupVersion, Name, Singular and List are required", k.Name)
	}
	obj, ok := any(new(T)).(runtime.Object)
	if !ok {
		return fmt.Errorf("resource %q: *%T is not a runtime.Object", k.Name, *new(T))
	}
	if _, ok := obj.(metav1.Object); !ok {
		return fmt.Errorf("resource %q: %T has no metadata", k.Name, obj)
	}
	if _, ok := reflect.TypeFor[T]().FieldByName("Status"); k.Status != nil && !ok {
		return fmt.Errorf("resource %q: %T has no Status for a status subresource", k.Name, obj)
	}
	if (k.Row == nil) != (len(k.Columns) == 0) {
		return fmt.Errorf("resource %q: Columns and Row go together", k.Name)
	}
	for _, f := range k.IndexFields {
		if !slices.Contains(k.selectable(), f) {
			return fmt.Errorf("resource %q: index field %q is not among its Fields", k.Name, f)
		}
	}
	return nil
}

// selectable lists the field labels of the kind beyond those of the metadata.
func (k *Kind[T]) selectable() []string {
	if k.Fields == nil {
		return nil
	}
	set := k.Fields(new(T))
	labels := make([]string, 0, len(set))
	for f := range set {
		labels = append(labels, f)
	}
	slices.Sort(labels)
	return labels
}

// addInternal registers the hub types as the internal version of the group, into which the generic
// server decodes. Group versions that share a group share one internal version.
func addInternal(scheme *runtime.Scheme, gv schema.GroupVersion, objects ...runtime.Object) {
	internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	scheme.AddKnownTypes(internal, objects...)
}

func kindOf(obj runtime.Object) string { return reflect.TypeOf(obj).Elem().Name() }

// addFieldLabels declares which field selectors the kind supports, and maps an alias's to those of
// the stored kind.
func addFieldLabels(
	scheme *runtime.Scheme, gvk schema.GroupVersionKind, selectable []string, renamed map[string]string,
) error {
	known := fields.Set{"metadata.name": "", "metadata.namespace": ""}
	for _, f := range selectable {
		known[f] = ""
	}
	return scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		if to, ok := renamed[label]; ok {
			return to, value, nil
		}
		if !known.Has(label) {
			return "", "", fmt.Errorf("field label not supported for %s: %q", gvk.Kind, label)
		}
		return label, value, nil
	})
}
