package apps

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

func validateStatefulSet(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
	// Pods are named after their set, so its name is a label.
	errs := validation.Meta(s, old, true, validation.LabelName)
	spec, at := &s.Spec, field.NewPath("spec")
	errs = append(errs, validateStatefulSetSpec(spec, at)...)
	if old == nil {
		errs = append(errs, validateIdentity(spec, at)...)
		return append(errs, podtemplate.Validate(podsTemplate(spec), at.Child("template"))...)
	}
	// A set that is invalid already can still be changed, such as scaled down.
	was := &old.Spec
	if len(validateStatefulSetSpec(was, nil)) == 0 && len(podtemplate.Validate(podsTemplate(was), nil)) == 0 {
		errs = append(errs, podtemplate.Validate(podsTemplate(spec), at.Child("template"))...)
	}
	errs = append(errs, validation.Immutable(spec.Selector, was.Selector, at.Child("selector"))...)
	errs = append(errs,
		validation.Immutable(spec.VolumeClaimTemplates, was.VolumeClaimTemplates, at.Child("volumeClaimTemplates"))...)
	errs = append(errs, validation.Immutable(spec.ServiceName, was.ServiceName, at.Child("serviceName"))...)
	return append(errs,
		validation.Immutable(spec.PodManagementPolicy, was.PodManagementPolicy, at.Child("podManagementPolicy"))...)
}

// validateStatefulSetSpec checks a spec except for the template and the immutable fields.
func validateStatefulSetSpec(spec *appsv1.StatefulSetSpec, at *field.Path) field.ErrorList {
	errs := validatePodManagement(spec.PodManagementPolicy, at.Child("podManagementPolicy"))
	errs = append(errs, validateStatefulSetStrategy(&spec.UpdateStrategy, at.Child("updateStrategy"))...)
	if p := spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := at.Child("persistentVolumeClaimRetentionPolicy")
		errs = append(errs, validateRetention(p.WhenDeleted, at.Child("whenDeleted"))...)
		errs = append(errs, validateRetention(p.WhenScaled, at.Child("whenScaled"))...)
	}
	errs = append(errs, validation.OptionalNonNegative(spec.Replicas, at.Child("replicas"))...)
	errs = append(errs, validation.NonNegative(spec.MinReadySeconds, at.Child("minReadySeconds"))...)
	if spec.Ordinals != nil {
		errs = append(errs, validation.NonNegative(spec.Ordinals.Start, at.Child("ordinals", "start"))...)
	}
	errs = append(errs, validateStatefulSetSelector(spec, at)...)
	return append(errs, podtemplate.ValidateRestarts(&spec.Template, "StatefulSet", at.Child("template"))...)
}

// validateIdentity checks the fields that give pods their names and claims, and never change.
func validateIdentity(spec *appsv1.StatefulSetSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range spec.VolumeClaimTemplates {
		errs = append(errs,
			podtemplate.ValidateClaimSpec(&spec.VolumeClaimTemplates[i].Spec,
				at.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	if spec.ServiceName != "" {
		errs = append(errs,
			validation.Check(spec.ServiceName, at.Child("serviceName"), utilvalidation.IsDNS1123Label)...)
	}
	return errs
}

func validatePodManagement(policy appsv1.PodManagementPolicyType, at *field.Path) field.ErrorList {
	switch policy {
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
		return nil
	case "":
		return field.ErrorList{field.Required(at, "")}
	}
	return field.ErrorList{
		field.Invalid(at, policy,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement))}
}

func validateStatefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, at *field.Path) field.ErrorList {
	switch s.Type {
	case "":
		return field.ErrorList{field.Required(at, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(at.Child("rollingUpdate"), s.RollingUpdate,
				fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType))}
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			return validateStatefulSetRolling(s.RollingUpdate, at.Child("rollingUpdate"))
		}
	default:
		return field.ErrorList{field.Invalid(at, s,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType,
				appsv1.OnDeleteStatefulSetStrategyType))}
	}
	return nil
}

func validateStatefulSetRolling(r *appsv1.RollingUpdateStatefulSetStrategy, at *field.Path) field.ErrorList {
	errs := validation.OptionalNonNegative(r.Partition, at.Child("partition"))
	if r.MaxUnavailable == nil {
		return errs
	}
	at = at.Child("maxUnavailable")
	errs = append(errs, validation.IntOrPercent(*r.MaxUnavailable, at)...)
	if amount(*r.MaxUnavailable) == 0 {
		errs = append(errs, field.Invalid(at, r.MaxUnavailable, "cannot be 0"))
	}
	return append(errs, validation.AtMost100Percent(*r.MaxUnavailable, at)...)
}

// amount is the number of a value, be it a percentage or not. Of nonsense it is 0.
func amount(v intstr.IntOrString) int {
	if percent, ok := validation.Percent(v); ok {
		return percent
	}
	return v.IntValue()
}

func validateRetention(p appsv1.PersistentVolumeClaimRetentionPolicyType, at *field.Path) field.ErrorList {
	known := []appsv1.PersistentVolumeClaimRetentionPolicyType{
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
	}
	if slices.Contains(known, p) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, p, known)}
}

func validateStatefulSetSelector(spec *appsv1.StatefulSetSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	set, path := spec.Selector, at.Child("selector")
	if set == nil {
		errs = append(errs, field.Required(path, ""))
	} else {
		errs = append(errs, validation.LabelSelector(set, path)...)
		if len(set.MatchLabels)+len(set.MatchExpressions) == 0 {
			errs = append(errs, field.Invalid(path, set, "empty selector is invalid for statefulset"))
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(set)
	if err != nil {
		return append(errs, field.Invalid(path, set, ""))
	}
	if !selector.Empty() && !selector.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, mismatch(spec.Template.Labels, at))
	}
	return errs
}

// mismatch returns the error of a selector that does not match the template's labels.
func mismatch(template map[string]string, spec *field.Path) *field.Error {
	return field.Invalid(spec.Child("template", "metadata", "labels"), template,
		"`selector` does not match template `labels`")
}

// podsTemplate is the template as pods get it: without the names that the controller gives them,
// and with volumes for the claims.
func podsTemplate(spec *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	t := spec.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	for i := range spec.VolumeClaimTemplates {
		name := spec.VolumeClaimTemplates[i].Name
		volume := corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}
		if at := slices.IndexFunc(t.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }); at >= 0 {
			t.Spec.Volumes[at] = volume
			continue
		}
		t.Spec.Volumes = append(t.Spec.Volumes, volume)
	}
	return t
}

func validateStatefulSetStatus(_ context.Context, set, old *appsv1.StatefulSet) field.ErrorList {
	s, at := &set.Status, field.NewPath("status")
	errs := validation.NonNegative(s.Replicas, at.Child("replicas"))
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"readyReplicas", s.ReadyReplicas},
		{"currentReplicas", s.CurrentReplicas},
		{"updatedReplicas", s.UpdatedReplicas},
		{"availableReplicas", s.AvailableReplicas},
	} {
		errs = append(errs, validation.NonNegative(n.value, at.Child(n.name))...)
		if n.value > s.Replicas {
			errs = append(errs, field.Invalid(at.Child(n.name), n.value, "cannot be greater than status.replicas"))
		}
	}
	errs = append(errs, validation.NonNegative(s.ObservedGeneration, at.Child("observedGeneration"))...)
	errs = append(errs, validation.OptionalNonNegative(s.CollisionCount, at.Child("collisionCount"))...)
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs,
			field.Invalid(at.Child("availableReplicas"), s.AvailableReplicas,
				"cannot be greater than status.readyReplicas"))
	}
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount, at)...)
}

// validateCollisions: the count of name collisions never decreases.
func validateCollisions(count, old *int32, status *field.Path) field.ErrorList {
	if n := ptr.Deref(count, 0); n < ptr.Deref(old, 0) {
		return field.ErrorList{field.Invalid(status.Child("collisionCount"), n, "cannot be decremented")}
	}
	return nil
}
