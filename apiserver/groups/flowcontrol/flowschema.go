package flowcontrol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

const (
	// defaultPrecedence is that of schemas that set none.
	defaultPrecedence = 1000
	// all is the wildcard of every name in a list.
	all = "*"
)

func flowSchemas() resource.Resource {
	return &resource.Kind[flowcontrolv1.FlowSchema]{
		GroupVersion:  version,
		Name:          "flowschemas",
		Singular:      "flowschema",
		ClusterScoped: true,
		List:          &flowcontrolv1.FlowSchemaList{},
		Generation:    true,
		Default:       defaultFlowSchema,
		Validate:      validateFlowSchema,
		Status: &resource.Status[flowcontrolv1.FlowSchema]{
			Prepare: func(
				_ context.Context, s, old *flowcontrolv1.FlowSchema,
			) {
				keepMeta(&s.ObjectMeta, &old.ObjectMeta)
			},
			Validate: func(_ context.Context, s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
				return validateSchemaStatus(s)
			},
			Reset: ofStatus(),
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("PriorityLevel", "string", "The priority level of requests that match."),
			resource.Column("MatchingPrecedence", "string",
				"Of several schemas that match, the one with the lowest number counts."),
			resource.Column("DistinguisherMethod", "string", "What tells the flows of requests that match apart."),
			resource.Age(),
			resource.Column("MissingPL", "string", "Whether there is no such priority level."),
		},
		Row: func(s *flowcontrolv1.FlowSchema, now time.Time) []any {
			method, missing := resource.None, "?"
			if d := s.Spec.DistinguisherMethod; d != nil {
				method = string(d.Type)
			}
			for _, c := range s.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					missing = string(c.Status)
					break
				}
			}
			return []any{s.Name, s.Spec.PriorityLevelConfiguration.Name, fmt.Sprint(s.Spec.MatchingPrecedence), method,
				resource.Since(s.CreationTimestamp, now), missing}
		},
	}
}

func defaultFlowSchema(s *flowcontrolv1.FlowSchema) {
	if s.Spec.MatchingPrecedence == 0 {
		s.Spec.MatchingPrecedence = defaultPrecedence
	}
}

func validateFlowSchema(_ context.Context, s, old *flowcontrolv1.FlowSchema) field.ErrorList {
	errs := validation.Meta(s, old, false, validation.SubdomainName)
	spec, at := &s.Spec, field.NewPath("spec")
	errs = append(errs, validatePrecedence(s, at.Child("matchingPrecedence"))...)
	if d := spec.DistinguisherMethod; d != nil {
		methods := []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType,
			flowcontrolv1.FlowDistinguisherMethodByUserType}
		if !slices.Contains(methods, d.Type) {
			errs = append(errs, field.NotSupported(at.Child("distinguisherMethod", "type"), d.Type, methods))
		}
	}
	level := at.Child("priorityLevelConfiguration", "name")
	if name := spec.PriorityLevelConfiguration.Name; name == "" {
		errs = append(errs, field.Required(level, "must reference a priority level"))
	} else {
		errs = append(errs, validation.Check(name, level, utilvalidation.IsDNS1123Subdomain)...)
	}
	for i := range spec.Rules {
		errs = append(errs, validateRule(&spec.Rules[i], at.Child("rules").Index(i))...)
	}
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if want := fixed.DeepCopy(); want.Name == s.Name {
			if defaultFlowSchema(want); !apiequality.Semantic.DeepEqual(want.Spec, s.Spec) {
				errs = append(errs,
					field.Invalid(at, s.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", s.Name)))
			}
		}
	}
	return append(errs, validateSchemaStatus(s)...)
}

func validateSchemaStatus(s *flowcontrolv1.FlowSchema) field.ErrorList {
	var types []flowcontrolv1.FlowSchemaConditionType
	for _, c := range s.Status.Conditions {
		types = append(types, c.Type)
	}
	return validateTypes(types)
}

func validatePrecedence(s *flowcontrolv1.FlowSchema, at *field.Path) field.ErrorList {
	n := s.Spec.MatchingPrecedence
	switch {
	case n <= 0:
		return field.ErrorList{field.Invalid(at, n, "must be a positive value")}
	case n > flowcontrolv1.FlowSchemaMaxMatchingPrecedence:
		return field.ErrorList{
			field.Invalid(at, n,
				fmt.Sprintf("must not be greater than %v", flowcontrolv1.FlowSchemaMaxMatchingPrecedence))}
	case n == 1 && s.Name != flowcontrolv1.FlowSchemaNameExempt:
		return field.ErrorList{field.Invalid(at, n, "only the schema named 'exempt' may have matchingPrecedence 1")}
	}
	return nil
}

func validateRule(r *flowcontrolv1.PolicyRulesWithSubjects, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(at.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, validateSubject(&r.Subjects[i], at.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules)+len(r.NonResourceRules) == 0 {
		errs = append(errs,
			field.Required(at, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		errs = append(errs, validateResourceRule(&r.ResourceRules[i], at.Child("resourceRules").Index(i))...)
	}
	for i := range r.NonResourceRules {
		errs = append(errs, validateURLRule(&r.NonResourceRules[i], at.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

// validateSubject checks that a subject has the field of its kind and no other.
func validateSubject(s *flowcontrolv1.Subject, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := false
	for _, of := range []struct {
		kind  flowcontrolv1.SubjectKind
		child string
		given bool
		check func(at *field.Path) field.ErrorList
	}{
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil,
			func(at *field.Path) field.ErrorList { return validateAccount(s.ServiceAccount, at) }},
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil,
			func(at *field.Path) field.ErrorList { return named(s.User.Name, at) }},
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil,
			func(at *field.Path) field.ErrorList { return named(s.Group.Name, at) }},
	} {
		at := at.Child(of.child)
		switch {
		case s.Kind == of.kind && of.given:
			errs = append(errs, of.check(at)...)
		case s.Kind == of.kind:
			errs = append(errs,
				field.Required(at, fmt.Sprintf("%s is required when subject kind is '%s'", of.child, of.kind)))
		case of.given:
			errs = append(errs,
				field.Forbidden(at, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", of.child, of.kind)))
		}
		known = known || s.Kind == of.kind
	}
	if !known {
		return field.ErrorList{field.NotSupported(at.Child("kind"), s.Kind, []flowcontrolv1.SubjectKind{
			flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount, flowcontrolv1.SubjectKindUser})}
	}
	return errs
}

func named(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at.Child("name"), "")}
	}
	return nil
}

func validateAccount(s *flowcontrolv1.ServiceAccountSubject, at *field.Path) field.ErrorList {
	errs := named(s.Name, at)
	if s.Name != "" && s.Name != all {
		errs = append(errs, validation.Check(s.Name, at.Child("name"), utilvalidation.IsDNS1123Subdomain)...)
	}
	if s.Namespace == "" {
		return append(errs, field.Required(at.Child("namespace"), "must specify namespace for service account"))
	}
	return append(errs, validation.Check(s.Namespace, at.Child("namespace"), utilvalidation.IsDNS1123Label)...)
}

// alone reports a "*" that is not the only one of a list.
func alone(list []string, what string, at *field.Path) field.ErrorList {
	if len(list) > 1 && slices.Contains(list, all) {
		return field.ErrorList{field.Invalid(at, list, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

func validateVerbs(verbs []string, at *field.Path) field.ErrorList {
	known := []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
	switch {
	case len(verbs) == 0:
		return field.ErrorList{field.Required(at, "verbs must contain at least one value")}
	case slices.Contains(verbs, all):
		return alone(verbs, "verbs", at)
	case slices.ContainsFunc(verbs, func(v string) bool { return !slices.Contains(known, v) }):
		return field.ErrorList{field.NotSupported(at, verbs, known)}
	}
	return nil
}

func validateResourceRule(r *flowcontrolv1.ResourcePolicyRule, at *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, at.Child("verbs"))
	if len(r.APIGroups) == 0 {
		errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	errs = append(errs, alone(r.APIGroups, "api groups", at.Child("apiGroups"))...)
	if len(r.Resources) == 0 {
		errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
	}
	errs = append(errs, alone(r.Resources, "resources", at.Child("resources"))...)
	at = at.Child("namespaces")
	switch {
	case len(r.Namespaces) == 0 && !r.ClusterScope:
		errs = append(errs,
			field.Required(at, "resource rules that are not cluster scoped must supply at least one namespace"))
	case slices.Contains(r.Namespaces, all):
		errs = append(errs, alone(r.Namespaces, "namespaces", at)...)
	default:
		for i, namespace := range r.Namespaces {
			for _, msg := range utilvalidation.IsDNS1123Label(namespace) {
				errs = append(errs,
					field.Invalid(at.Index(i), namespace,
						"each member of this list must be '*' or a DNS-1123 label; "+msg))
			}
		}
	}
	return errs
}

func validateURLRule(r *flowcontrolv1.NonResourcePolicyRule, at *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, at.Child("verbs"))
	at = at.Child("nonResourceURLs")
	switch {
	case len(r.NonResourceURLs) == 0:
		errs = append(errs, field.Required(at, "nonResourceURLs must contain at least one value"))
	case slices.Contains(r.NonResourceURLs, all):
		errs = append(errs, alone(r.NonResourceURLs, "non-resource URLs", at)...)
	default:
		for i, url := range r.NonResourceURLs {
			errs = append(errs, validation.Check(url, at.Index(i), checkURL)...)
		}
	}
	return errs
}

// checkURL checks a path, which may end with "/*".
func checkURL(path string) []string {
	switch stars := strings.Count(path, all); {
	case path == "":
		return []string{"must not be empty"}
	case path == "/":
		return nil
	case !strings.HasPrefix(path, "/"):
		return []string{"must start with slash"}
	case strings.Contains(path, " "):
		return []string{"must not contain white-space"}
	case strings.Contains(path, "//"):
		return []string{"must not contain double slash"}
	case stars > 1 || stars == 1 && !strings.HasSuffix(path, "/*"):
		return []string{"wildcard can only do suffix matching"}
	}
	return nil
}
