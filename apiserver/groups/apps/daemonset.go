package apps

import (
	"context"
	"maps"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func daemonSets() resource.Resource {
	return &resource.Kind[appsv1.DaemonSet]{
		GroupVersion: version,
		Name:         "daemonsets",
		Singular:     "daemonset",
		ShortNames:   []string{"ds"},
		Categories:   []string{"all"},
		List:         &appsv1.DaemonSetList{},
		Default:      defaultDaemonSet,
		Prepare:      prepareDaemonSet,
		Validate:     validateDaemonSet,
		Warnings: func(_ context.Context, d, old *appsv1.DaemonSet) []string {
			if old != nil && templateGeneration(d) == templateGeneration(old) {
				return nil
			}
			return warn.Template("", &d.Spec.Template, "spec", "template")
		},
		Generation: true,
		Status: &resource.Status[appsv1.DaemonSet]{
			Prepare: func(_ context.Context, d, old *appsv1.DaemonSet) {
				setTemplateGeneration(d, templateGeneration(old))
			},
			Validate: validateDaemonSetStatus,
		},
		Columns: append([]metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Desired", "integer", "How many nodes should run the pod."),
			resource.Column("Current", "integer", "How many of these nodes run it."),
			resource.Column("Ready", "integer", "On how many of these nodes it is ready."),
			resource.Column("Up-to-date", "integer", "On how many of these nodes it is of the newest template."),
			resource.Column("Available", "integer", "On how many of these nodes it has been ready for long enough."),
			resource.Column("Node Selector", "string", "Labels of the nodes that should run the pod."),
			resource.Age(),
		}, podtemplate.Columns()...),
		Row: func(d *appsv1.DaemonSet, now time.Time) []any {
			return append([]any{
				d.Name,
				int64(d.Status.DesiredNumberScheduled),
				int64(d.Status.CurrentNumberScheduled),
				int64(d.Status.NumberReady),
				int64(d.Status.UpdatedNumberScheduled),
				int64(d.Status.NumberAvailable),
				labels.FormatLabels(d.Spec.Template.Spec.NodeSelector),
				resource.Since(d.CreationTimestamp, now),
			}, podtemplate.Cells(&d.Spec.Template.Spec, d.Spec.Selector)...)
		},
	}
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	podtemplate.Default(&d.Spec.Template)
	strategy := &d.Spec.UpdateStrategy
	if strategy.Type == "" {
		strategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if strategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if strategy.RollingUpdate == nil {
			strategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{}
		}
		if strategy.RollingUpdate.MaxUnavailable == nil {
			strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(1))
		}
		if strategy.RollingUpdate.MaxSurge == nil {
			strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
		}
	}
	if d.Spec.RevisionHistoryLimit == nil {
		d.Spec.RevisionHistoryLimit = ptr.To[int32](10)
	}
}

// prepareDaemonSet counts the versions of the template in an annotation, for controllers of old.
// Clients may set the begin of the count, and nothing more.
func prepareDaemonSet(_ context.Context, d, old *appsv1.DaemonSet) {
	if old == nil {
		if _, err := parseTemplateGeneration(d); err == nil {
			setTemplateGeneration(d, max(templateGeneration(d), 1))
		}
		return
	}
	n := templateGeneration(old)
	if !apiequality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
		n++
	}
	setTemplateGeneration(d, n)
}

func parseTemplateGeneration(d *appsv1.DaemonSet) (int64, error) {
	text, ok := d.Annotations[appsv1.DeprecatedTemplateGeneration]
	if !ok {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// templateGeneration is 0 when the annotation is no number.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := parseTemplateGeneration(d)
	if err != nil {
		return 0
	}
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	annotations := maps.Clone(d.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
	d.Annotations = annotations
}

func validateDaemonSet(_ context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
	errs := validation.Meta(d, old, true, validation.SubdomainName)
	spec, at := &d.Spec, field.NewPath("spec")
	if old != nil {
		errs = append(errs, validation.Immutable(spec.Selector, old.Spec.Selector, at.Child("selector"))...)
	}
	if _, err := parseTemplateGeneration(d); err != nil {
		path := field.NewPath("metadata", "annotations").Key(appsv1.DeprecatedTemplateGeneration)
		errs = append(errs,
			field.Invalid(path, d.Annotations[appsv1.DeprecatedTemplateGeneration], "must be an integer"))
	}
	errs = append(errs, validation.LabelSelector(spec.Selector, at.Child("selector"))...)
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil &&
		!selector.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, mismatch(spec.Template.Labels, at))
	}
	if s := spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(at.Child("selector"), s, "empty selector is invalid for daemonset"))
	}
	errs = append(errs, podtemplate.ValidateForever(&spec.Template, "DaemonSet", at.Child("template"))...)
	errs = append(errs, validation.NonNegative(spec.MinReadySeconds, at.Child("minReadySeconds"))...)
	errs = append(errs, validateDaemonSetStrategy(&spec.UpdateStrategy, at.Child("updateStrategy"))...)
	return append(errs, validation.OptionalNonNegative(spec.RevisionHistoryLimit, at.Child("revisionHistoryLimit"))...)
}

func validateDaemonSetStrategy(s *appsv1.DaemonSetUpdateStrategy, at *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(at.Child("rollingUpdate"), "")}
		}
		return validateDaemonSetRolling(s.RollingUpdate, at.Child("rollingUpdate"))
	}
	return field.ErrorList{field.NotSupported(at, s, []appsv1.DaemonSetUpdateStrategyType{
		appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType,
	})}
}

// validateDaemonSetRolling: of pods that are missing and pods that are too many, a rollout uses
// one.
func validateDaemonSetRolling(r *appsv1.RollingUpdateDaemonSet, at *field.Path) field.ErrorList {
	unavailable, surge := ptr.Deref(r.MaxUnavailable, intstr.IntOrString{}), ptr.Deref(r.MaxSurge, intstr.IntOrString{})
	errs := validation.IntOrPercent(unavailable, at.Child("maxUnavailable"))
	errs = append(errs, validation.IntOrPercent(surge, at.Child("maxSurge"))...)
	errs = append(errs, validation.AtMost100Percent(unavailable, at.Child("maxUnavailable"))...)
	errs = append(errs, validation.AtMost100Percent(surge, at.Child("maxSurge"))...)
	switch n, m := amount(unavailable), amount(surge); {
	case n != 0 && m != 0:
		errs = append(errs,
			field.Invalid(at.Child("maxSurge"), r.MaxSurge, "may not be set when maxUnavailable is non-zero"))
	case n == 0 && m == 0:
		errs = append(errs, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

func validateDaemonSetStatus(_ context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
	s, at := &d.Status, field.NewPath("status")
	var errs field.ErrorList
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"currentNumberScheduled", s.CurrentNumberScheduled},
		{"numberMisscheduled", s.NumberMisscheduled},
		{"desiredNumberScheduled", s.DesiredNumberScheduled},
		{"numberReady", s.NumberReady},
		{"updatedNumberScheduled", s.UpdatedNumberScheduled},
		{"numberAvailable", s.NumberAvailable},
		{"numberUnavailable", s.NumberUnavailable},
		{"collisionCount", ptr.Deref(s.CollisionCount, 0)},
	} {
		errs = append(errs, validation.NonNegative(n.value, at.Child(n.name))...)
	}
	errs = append(errs, validation.NonNegative(s.ObservedGeneration, at.Child("observedGeneration"))...)
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount, at)...)
}
