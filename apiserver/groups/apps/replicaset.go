package apps

import (
	"context"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func replicaSets() resource.Resource {
	return &resource.Kind[appsv1.ReplicaSet]{
		GroupVersion: version,
		Name:         "replicasets",
		Singular:     "replicaset",
		ShortNames:   []string{"rs"},
		Categories:   []string{"all"},
		List:         &appsv1.ReplicaSetList{},
		Default:      defaultReplicaSet,
		Validate:     validateReplicaSet,
		Warnings: func(_ context.Context, rs, old *appsv1.ReplicaSet) []string {
			return templateWarnings(rs, old, &rs.Spec.Template)
		},
		Generation: true,
		Status:     &resource.Status[appsv1.ReplicaSet]{Validate: validateReplicaSetStatus},
		Scale: &resource.Scale[appsv1.ReplicaSet]{
			Replicas: func(rs *appsv1.ReplicaSet) *int32 { return rs.Spec.Replicas },
			Observed: func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas },
			Selector: func(rs *appsv1.ReplicaSet) (string, error) { return selectorString(rs.Spec.Selector) },
		},
		Columns: append([]metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Desired", "integer", "How many pods there should be."),
			resource.Column("Current", "integer", "How many pods there are."),
			resource.Column("Ready", "integer", "How many pods are ready."),
			resource.Age(),
		}, podtemplate.Columns()...),
		Row: func(rs *appsv1.ReplicaSet, now time.Time) []any {
			return append([]any{
				rs.Name,
				int64(ptr.Deref(rs.Spec.Replicas, 0)),
				int64(rs.Status.Replicas),
				int64(rs.Status.ReadyReplicas),
				resource.Since(rs.CreationTimestamp, now),
			}, podtemplate.Cells(&rs.Spec.Template.Spec, rs.Spec.Selector)...)
		},
		Fields: func(rs *appsv1.ReplicaSet) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(rs.Status.Replicas))}
		},
	}
}

func defaultReplicaSet(rs *appsv1.ReplicaSet) {
	podtemplate.Default(&rs.Spec.Template)
	if rs.Spec.Replicas == nil {
		rs.Spec.Replicas = ptr.To[int32](1)
	}
}

func validateReplicaSet(_ context.Context, rs, old *appsv1.ReplicaSet) field.ErrorList {
	errs := validation.Meta(rs, old, true, validation.SubdomainName)
	spec, at := &rs.Spec, field.NewPath("spec")
	errs = append(errs, validation.OptionalNonNegative(spec.Replicas, at.Child("replicas"))...)
	errs = append(errs, validation.NonNegative(spec.MinReadySeconds, at.Child("minReadySeconds"))...)
	errs = append(errs, validation.WorkloadSelector(spec.Selector, spec.Template.Labels, at)...)
	errs = append(errs, podtemplate.ValidateForever(&spec.Template, "ReplicaSet", at.Child("template"))...)
	if old != nil {
		errs = append(errs, validation.Immutable(spec.Selector, old.Spec.Selector, at.Child("selector"))...)
	}
	return errs
}

func validateReplicaSetStatus(_ context.Context, rs, old *appsv1.ReplicaSet) field.ErrorList {
	s, at := &rs.Status, field.NewPath("status")
	errs := validation.Meta(rs, old, true, validation.SubdomainName)
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"replicas", s.Replicas},
		{"fullyLabeledReplicas", s.FullyLabeledReplicas},
		{"readyReplicas", s.ReadyReplicas},
		{"availableReplicas", s.AvailableReplicas},
	} {
		errs = append(errs, validation.NonNegative(n.value, at.Child(n.name))...)
		if n.value > s.Replicas {
			errs = append(errs, field.Invalid(at.Child(n.name), n.value, "cannot be greater than status.replicas"))
		}
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs,
			field.Invalid(at.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	errs = append(errs, validation.OptionalNonNegative(s.TerminatingReplicas, at.Child("terminatingReplicas"))...)
	return append(errs, validation.NonNegative(s.ObservedGeneration, at.Child("observedGeneration"))...)
}
