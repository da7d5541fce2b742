package core

import (
	"context"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func replicationControllers() resource.Resource {
	return &resource.Kind[corev1.ReplicationController]{
		GroupVersion:      version,
		Name:              "replicationcontrollers",
		Singular:          "replicationcontroller",
		ShortNames:        []string{"rc"},
		Categories:        []string{"all"},
		List:              &corev1.ReplicationControllerList{},
		Default:           defaultReplicationController,
		Validate:          validateReplicationController,
		Warnings:          replicationControllerWarnings,
		Generation:        true,
		GarbageCollection: rest.OrphanDependents, // as clients have known it since before there was a choice
		Status: &resource.Status[corev1.ReplicationController]{
			Validate: validateReplicationControllerStatus},
		Scale: &resource.Scale[corev1.ReplicationController]{
			Replicas: func(rc *corev1.ReplicationController) *int32 { return rc.Spec.Replicas },
			Observed: func(rc *corev1.ReplicationController) int32 { return rc.Status.Replicas },
			Selector: func(rc *corev1.ReplicationController) (string, error) {
				return labels.Set(rc.Spec.Selector).AsSelector().String(), nil
			},
		},
		Columns: append([]metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Desired", "integer", "How many pods there should be."),
			resource.Column("Current", "integer", "How many pods there are."),
			resource.Column("Ready", "integer", "How many pods are ready."),
			resource.Age(),
		}, podtemplate.Columns()...),
		Row: func(rc *corev1.ReplicationController, now time.Time) []any {
			t := ptr.Deref(rc.Spec.Template, corev1.PodTemplateSpec{})
			cells := podtemplate.Cells(&t.Spec, nil)
			return []any{
				rc.Name,
				int64(ptr.Deref(rc.Spec.Replicas, 0)),
				int64(rc.Status.Replicas),
				int64(rc.Status.ReadyReplicas),
				resource.Since(rc.CreationTimestamp, now),
				cells[0], cells[1], resource.FormatLabels(rc.Spec.Selector),
			}
		},
		Fields: func(rc *corev1.ReplicationController) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(rc.Status.Replicas))}
		},
	}
}

// defaultReplicationController selects the pods of the template, and labels the controller as them.
func defaultReplicationController(rc *corev1.ReplicationController) {
	if t := rc.Spec.Template; t != nil {
		podtemplate.Default(t)
		if t.Labels != nil && len(rc.Spec.Selector) == 0 {
			rc.Spec.Selector = maps.Clone(t.Labels)
		}
		if t.Labels != nil && len(rc.Labels) == 0 {
			rc.Labels = maps.Clone(t.Labels)
		}
	}
	if rc.Spec.Replicas == nil {
		rc.Spec.Replicas = ptr.To[int32](1)
	}
}

func replicationControllerWarnings(_ context.Context, rc, old *corev1.ReplicationController) []string {
	switch {
	case rc.Spec.Template == nil:
		return nil
	case old == nil:
		return warn.Template(rc.Name, rc.Spec.Template, "spec", "template")
	case rc.Generation != old.Generation:
		return warn.Template("", rc.Spec.Template, "spec", "template")
	}
	return nil
}

func validateReplicationController(_ context.Context, rc, old *corev1.ReplicationController) field.ErrorList {
	errs := validation.Meta(rc, old, true, validation.SubdomainName)
	spec, at := &rc.Spec, field.NewPath("spec")
	errs = append(errs, validation.NonNegative(spec.MinReadySeconds, at.Child("minReadySeconds"))...)
	if len(spec.Selector) == 0 {
		errs = append(errs, field.Required(at.Child("selector"), ""))
	}
	if spec.Replicas == nil {
		errs = append(errs, field.Required(at.Child("replicas"), ""))
	} else {
		errs = append(errs, validation.NonNegative(*spec.Replicas, at.Child("replicas"))...)
	}
	if spec.Template == nil {
		return append(errs, field.Required(at.Child("template"), ""))
	}
	if !labels.Set(spec.Selector).AsSelector().Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs,
			field.Invalid(at.Child("template", "metadata", "labels"), spec.Template.Labels,
				"`selector` does not match template `labels`"))
	}
	return append(errs, podtemplate.ValidateForever(spec.Template, "ReplicationController", at.Child("template"))...)
}

func validateReplicationControllerStatus(_ context.Context, rc, _ *corev1.ReplicationController) field.ErrorList {
	s, at := &rc.Status, field.NewPath("status")
	errs := validation.NonNegative(s.Replicas, at.Child("replicas"))
	for _, n := range []struct {
		name  string
		value int32
	}{
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
	return append(errs, validation.NonNegative(s.ObservedGeneration, at.Child("observedGeneration"))...)
}
