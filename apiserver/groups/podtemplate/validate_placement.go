package podtemplate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

// validatePlacement checks the fields that the scheduler uses.
func (c *checker) validatePlacement(at *field.Path) field.ErrorList {
	errs := validation.Labels(c.spec.NodeSelector, at.Child("nodeSelector"))
	errs = append(errs, ValidateTolerations(c.spec.Tolerations, at.Child("tolerations"))...)
	errs = append(errs, validateSpread(c.spec.TopologySpreadConstraints, at.Child("topologySpreadConstraints"))...)
	return append(errs, validateAffinity(c.spec.Affinity, at.Child("affinity"))...)
}

// ValidateTolerations checks the tolerations of a pod or of a runtime class.
func ValidateTolerations(tolerations []corev1.Toleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		at := at.Index(i)
		if t.Key != "" {
			errs = append(errs, validation.QualifiedName(t.Key, at.Child("key"))...)
		} else if t.Operator != corev1.TolerationOpExists {
			errs = append(errs,
				field.Invalid(at.Child("operator"), t.Operator,
					"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			errs = append(errs,
				field.Invalid(at.Child("effect"), t.Effect,
					"effect must be 'NoExecute' when `tolerationSeconds` is set"))
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			if msgs := utilvalidation.IsValidLabelValue(t.Value); len(msgs) > 0 {
				errs = append(errs, field.Invalid(at.Child("operator"), t.Value, strings.Join(msgs, ";")))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs,
					field.Invalid(at.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			errs = append(errs, field.NotSupported(at.Child("operator"), t.Operator,
				[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt,
					corev1.TolerationOpGt}))
		default:
			errs = append(errs,
				field.NotSupported(at.Child("operator"), t.Operator,
					[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
		}
		if t.Effect != "" {
			errs = append(errs, validation.Enum(t.Effect, at.Child("effect"),
				corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
		}
	}
	return errs
}

func validateSpread(constraints []corev1.TopologySpreadConstraint, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range constraints {
		s, at := &constraints[i], at.Index(i)
		errs = append(errs, validation.Positive(s.MaxSkew, at.Child("maxSkew"))...)
		if s.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		}
		errs = append(errs,
			validation.OneOf(s.WhenUnsatisfiable, at.Child("whenUnsatisfiable"), corev1.DoNotSchedule,
				corev1.ScheduleAnyway)...)
		// It is the first of two that is reported.
		if slices.ContainsFunc(constraints[i+1:], func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == s.TopologyKey && o.WhenUnsatisfiable == s.WhenUnsatisfiable
		}) {
			errs = append(errs,
				field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"),
					fmt.Sprintf("{%v, %v}", s.TopologyKey, s.WhenUnsatisfiable)))
		}
		if s.MinDomains != nil {
			errs = append(errs, validation.Positive(*s.MinDomains, at.Child("minDomains"))...)
			if s.WhenUnsatisfiable != corev1.DoNotSchedule {
				errs = append(errs,
					field.Invalid(at.Child("minDomains"), *s.MinDomains,
						fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule,
							s.WhenUnsatisfiable)))
			}
		}
		errs = append(errs,
			validation.OptionalOneOf(s.NodeAffinityPolicy, at.Child("nodeAffinityPolicy"),
				corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)...)
		errs = append(errs,
			validation.OptionalOneOf(s.NodeTaintsPolicy, at.Child("nodeTaintsPolicy"), corev1.NodeInclusionPolicyHonor,
				corev1.NodeInclusionPolicyIgnore)...)
		errs = append(errs, mergedKeys(s.MatchLabelKeys, nil, s.LabelSelector, at)...)
		errs = append(errs, validation.LabelSelector(s.LabelSelector, at.Child("labelSelector"))...)
	}
	return errs
}

// mergedKeys checks keys of labels whose values the server merges into a selector. A key that is
// also in the selector comes twice there, once by the merge.
func mergedKeys(match, mismatch []string, selector *metav1.LabelSelector, at *field.Path) field.ErrorList {
	errs := validateLabelKeys(match, selector, at.Child("matchLabelKeys"))
	errs = append(errs, validateLabelKeys(mismatch, selector, at.Child("mismatchLabelKeys"))...)
	if selector != nil {
		taken, last := map[string]bool{}, map[string]int{}
		for i, key := range match {
			last[key] = i
		}
		for key := range selector.MatchLabels {
			taken[key] = true
		}
		for _, e := range selector.MatchExpressions {
			if i, merged := last[e.Key]; merged && taken[e.Key] {
				errs = append(errs,
					field.Invalid(at.Index(i), e.Key, "exists in both matchLabelKeys and labelSelector"))
			}
			taken[e.Key] = true
		}
	}
	for i, key := range match {
		if slices.Contains(mismatch, key) {
			errs = append(errs,
				field.Invalid(at.Child("matchLabelKeys").Index(i), key,
					"exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	return errs
}

func validateLabelKeys(keys []string, selector *metav1.LabelSelector, at *field.Path) field.ErrorList {
	if len(keys) > 0 && selector == nil {
		return field.ErrorList{field.Forbidden(at, "must not be specified when labelSelector is not set")}
	}
	var errs field.ErrorList
	for i, key := range keys {
		errs = append(errs, validation.Check(key, at.Index(i), utilvalidation.IsQualifiedName)...)
	}
	return errs
}

func validateAffinity(a *corev1.Affinity, at *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if n := a.NodeAffinity; n != nil {
		errs = append(errs, validateNodeAffinity(n, at.Child("nodeAffinity"))...)
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs,
			validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution,
				p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAffinity"))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs,
			validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution,
				p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAntiAffinity"))...)
	}
	return errs
}

func validateNodeAffinity(n *corev1.NodeAffinity, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s := n.RequiredDuringSchedulingIgnoredDuringExecution; s != nil {
		errs = append(errs, ValidateNodeSelector(s, at.Child("requiredDuringSchedulingIgnoredDuringExecution"))...)
	}
	at = at.Child("preferredDuringSchedulingIgnoredDuringExecution")
	for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
		term := &n.PreferredDuringSchedulingIgnoredDuringExecution[i]
		errs = append(errs, validateWeight(term.Weight, at.Index(i).Child("weight"))...)
		// Values that no label has are accepted: the preference never holds, and a warning is
		// given.
		errs = append(errs, validateNodeTerm(&term.Preference, false, at.Index(i).Child("preference"))...)
	}
	return errs
}

// ValidateNodeSelector checks a selector of nodes, which must have a term.
func ValidateNodeSelector(s *corev1.NodeSelector, at *field.Path) field.ErrorList {
	at = at.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(at, "must have at least one node selector term")}
	}
	var errs field.ErrorList
	for i := range s.NodeSelectorTerms {
		errs = append(errs, validateNodeTerm(&s.NodeSelectorTerms[i], true, at.Index(i))...)
	}
	return errs
}

func validateNodeTerm(term *corev1.NodeSelectorTerm, labelValues bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range term.MatchExpressions {
		errs = append(errs,
			validateNodeRequirement(&term.MatchExpressions[i], labelValues, at.Child("matchExpressions").Index(i))...)
	}
	for i := range term.MatchFields {
		errs = append(errs, validateNodeField(&term.MatchFields[i], at.Child("matchFields").Index(i))...)
	}
	return errs
}

func validateNodeRequirement(r *corev1.NodeSelectorRequirement, labelValues bool, at *field.Path) field.ErrorList {
	errs := validation.Check(r.Key, at.Child("key"), utilvalidation.IsQualifiedName)
	values := at.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs,
				field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			errs = append(errs,
				field.Required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if labelValues {
		for i, v := range r.Values {
			errs = append(errs, validation.Check(v, values.Index(i), utilvalidation.IsValidLabelValue)...)
		}
	}
	return errs
}

func validateNodeField(r *corev1.NodeSelectorRequirement, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Operator != corev1.NodeSelectorOpIn && r.Operator != corev1.NodeSelectorOpNotIn {
		errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
	} else if len(r.Values) != 1 {
		errs = append(errs,
			field.Required(at.Child("values"),
				"must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
	}
	if r.Key != metav1.ObjectNameField {
		return append(errs, field.Invalid(at.Child("key"), r.Key, "not a valid field selector key"))
	}
	for i, v := range r.Values {
		errs = append(errs, validation.Check(v, at.Child("values").Index(i), utilvalidation.IsDNS1123Subdomain)...)
	}
	return errs
}

func validateWeight(weight int32, at *field.Path) field.ErrorList {
	if weight < 1 || weight > 100 {
		return field.ErrorList{field.Invalid(at, weight, "must be in the range 1-100")}
	}
	return nil
}

func validatePodTerms(
	required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	for i := range required {
		errs = append(errs,
			validatePodTerm(&required[i], at.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i))...)
	}
	for i := range preferred {
		at := at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		errs = append(errs, validateWeight(preferred[i].Weight, at.Child("weight"))...)
		errs = append(errs, validatePodTerm(&preferred[i].PodAffinityTerm, at.Child("podAffinityTerm"))...)
	}
	return errs
}

func validatePodTerm(t *corev1.PodAffinityTerm, at *field.Path) field.ErrorList {
	errs := validation.LabelSelector(t.LabelSelector, at.Child("labelSelector"))
	errs = append(errs, validation.LabelSelector(t.NamespaceSelector, at.Child("namespaceSelector"))...)
	for _, ns := range t.Namespaces {
		errs = append(errs, validation.Check(ns, at.Child("namespace"), utilvalidation.IsDNS1123Label)...)
	}
	if t.TopologyKey == "" {
		errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
	}
	errs = append(errs, validation.Check(t.TopologyKey, at.Child("topologyKey"), utilvalidation.IsQualifiedName)...)
	return append(errs, mergedKeys(t.MatchLabelKeys, t.MismatchLabelKeys, t.LabelSelector, at)...)
}
