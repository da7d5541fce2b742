package core

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func namespaces() resource.Resource {
	return &resource.Kind[corev1.Namespace]{
		GroupVersion:  version,
		Name:          "namespaces",
		Singular:      "namespace",
		ShortNames:    []string{"ns"},
		ClusterScoped: true,
		List:          &corev1.NamespaceList{},
		Default:       defaultNamespace,
		Prepare:       prepareNamespace,
		Validate:      validateNamespace,
		Status:        &resource.Status[corev1.Namespace]{Validate: validateNamespaceStatus},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Status", "string", "The phase of the namespace."),
			resource.Age(),
		},
		Row: func(ns *corev1.Namespace, now time.Time) []any {
			return []any{ns.Name, string(ns.Status.Phase), resource.Since(ns.CreationTimestamp, now)}
		},
		Fields: func(ns *corev1.Namespace) fields.Set {
			// The field is also selectable by "name" upstream, from the days before metadata.name.
			return fields.Set{"status.phase": string(ns.Status.Phase), "name": ns.Name}
		},
		// A namespace is gone when its controller has emptied it and has taken the finalizer of the
		// spec away, which may be an update of its own.
		DeleteDuringUpdate: func(_ context.Context, ns, _ *corev1.Namespace) bool {
			return ns.DeletionTimestamp != nil && len(ns.Spec.Finalizers) == 0 && len(ns.Finalizers) == 0
		},
	}
}

func defaultNamespace(ns *corev1.Namespace) {
	if ns.Status.Phase == "" {
		ns.Status.Phase = corev1.NamespaceActive
	}
	// Network policies and admission select namespaces by name with this label.
	if ns.Name != "" {
		if ns.Labels == nil {
			ns.Labels = map[string]string{}
		}
		ns.Labels[corev1.LabelMetadataName] = ns.Name
	}
}

func prepareNamespace(_ context.Context, ns, old *corev1.Namespace) {
	if old != nil {
		// Only the finalize subresource changes the finalizers of the spec.
		ns.Spec.Finalizers = old.Spec.Finalizers
		return
	}
	if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
	// A generated name exists only now.
	defaultNamespace(ns)
}

func validateNamespace(_ context.Context, ns, old *corev1.Namespace) field.ErrorList {
	errs := validation.Meta(ns, old, false, validation.LabelName)
	if old != nil {
		return errs
	}
	at := field.NewPath("spec", "finalizers")
	for _, f := range ns.Spec.Finalizers {
		errs = append(errs, validateNamespaceFinalizer(f, at)...)
	}
	return errs
}

func validateNamespaceFinalizer(f corev1.FinalizerName, at *field.Path) field.ErrorList {
	return append(validation.Check(string(f), at, utilvalidation.IsQualifiedName),
		validation.Finalizer(string(f), at)...)
}

// ValidateNamespaceFinalizers checks the finalizers of a namespace's spec.
func ValidateNamespaceFinalizers(finalizers []corev1.FinalizerName) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("spec", "finalizers")
	for i, f := range finalizers {
		errs = append(errs, validateNamespaceFinalizer(f, at.Index(i))...)
	}
	return errs
}

func validateNamespaceStatus(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList {
	at := field.NewPath("status", "Phase")
	switch {
	case ns.DeletionTimestamp == nil && ns.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{
			field.Invalid(at, ns.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case ns.DeletionTimestamp != nil && ns.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{
			field.Invalid(at, ns.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}
