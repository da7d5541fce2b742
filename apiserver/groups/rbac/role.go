package rbac

import (
	"context"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func roles() resource.Resource {
	return &resource.Kind[rbacv1.Role]{
		GroupVersion: version,
		Name:         "roles",
		Singular:     "role",
		List:         &rbacv1.RoleList{},
		Validate: func(_ context.Context, r, old *rbacv1.Role) field.ErrorList {
			errs := validation.Meta(r, old, true, validation.SegmentName)
			return append(errs, validateRules(r.Rules, true)...)
		},
		Columns: roleColumns(),
		Row:     func(r *rbacv1.Role, _ time.Time) []any { return roleCells(&r.ObjectMeta) },
	}
}

func clusterRoles() resource.Resource {
	return &resource.Kind[rbacv1.ClusterRole]{
		GroupVersion:  version,
		Name:          "clusterroles",
		Singular:      "clusterrole",
		ClusterScoped: true,
		List:          &rbacv1.ClusterRoleList{},
		Validate:      validateClusterRole,
		Columns:       roleColumns(),
		Row:           func(r *rbacv1.ClusterRole, _ time.Time) []any { return roleCells(&r.ObjectMeta) },
	}
}

func validateClusterRole(_ context.Context, r, old *rbacv1.ClusterRole) field.ErrorList {
	errs := validation.Meta(r, old, false, validation.SegmentName)
	errs = append(errs, validateRules(r.Rules, false)...)
	if r.AggregationRule == nil {
		return errs
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		errs = append(errs,
			field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		s := &r.AggregationRule.ClusterRoleSelectors[i]
		errs = append(errs, validation.LabelSelector(s, at.Index(i))...)
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			errs = append(errs, field.Invalid(at.Index(i), s, "invalid label selector."))
		}
	}
	return errs
}

// validateRules checks that each rule speaks either of resources or of other URLs. Only roles of
// the cluster speak of the latter, which have no namespace.
func validateRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i, rule := range rules {
		at := field.NewPath("rules").Index(i)
		if len(rule.Verbs) == 0 {
			errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(rule.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs,
					field.Invalid(at.Child("nonResourceURLs"), rule.NonResourceURLs,
						"namespaced rules cannot apply to non-resource URLs"))
			}
			if len(rule.APIGroups)+len(rule.Resources)+len(rule.ResourceNames) > 0 {
				errs = append(errs,
					field.Invalid(at.Child("nonResourceURLs"), rule.NonResourceURLs,
						"rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(rule.APIGroups) == 0 {
			errs = append(errs,
				field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(rule.Resources) == 0 {
			errs = append(errs,
				field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}
