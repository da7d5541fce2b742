package rbac

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	listers "k8s.io/client-go/listers/rbac/v1"
)

// Authorizer answers requests and lists a user's rules. It is safe for concurrent use.
type Authorizer struct {
	roles               listers.RoleLister
	roleBindings        listers.RoleBindingLister
	clusterRoles        listers.ClusterRoleLister
	clusterRoleBindings listers.ClusterRoleBindingLister
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// NewAuthorizer returns an authorizer over the listers.
func NewAuthorizer(
	roles listers.RoleLister, roleBindings listers.RoleBindingLister, clusterRoles listers.ClusterRoleLister,
	clusterRoleBindings listers.ClusterRoleBindingLister,
) *Authorizer {
	return &Authorizer{roles, roleBindings, clusterRoles, clusterRoleBindings}
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	reason := ""
	err := a.visit(attrs.GetUser(), attrs.GetNamespace(), func(binding fmt.Stringer, rule *rbacv1.PolicyRule) bool {
		if !Allows(rule, attrs) {
			return true
		}
		reason = "RBAC: allowed by " + binding.String()
		return false
	})
	if reason != "" {
		return authorizer.DecisionAllow, reason, nil
	}
	// A binding to a role that does not exist is a reason to return, not a failure of the server.
	if err != nil {
		reason = "RBAC: " + err.Error()
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; RBAC knows no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(
	ctx context.Context, attrs authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer; RBAC knows no conditions.
func (a *Authorizer) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorizer) RulesFor(
	_ context.Context, u user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var urls []authorizer.NonResourceRuleInfo
	rules, err := a.Rules(u, namespace)
	for i := range rules {
		r := &rules[i]
		if len(r.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			urls = append(urls,
				&authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resources, urls, false, err
}

// Rules lists the user's rights in namespace, and cluster-wide. The rules are valid even with an
// error, which names bindings to roles that do not exist.
func (a *Authorizer) Rules(u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	err := a.visit(u, namespace, func(_ fmt.Stringer, rule *rbacv1.PolicyRule) bool {
		rules = append(rules, *rule)
		return true
	})
	return rules, err
}

// RoleRules resolves the role of a binding in namespace (empty for a cluster binding).
func (a *Authorizer) RoleRules(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "ClusterRole":
		role, err := a.clusterRoles.Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	case "Role":
		role, err := a.roles.Roles(namespace).Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return nil, fmt.Errorf("a role reference cannot be to a %q", ref.Kind)
}

// source describes why a rule applies, lazily: most rules do not match.
type source struct {
	kind, namespace, name string
	ref                   rbacv1.RoleRef
	subject               *rbacv1.Subject
}

func (s *source) String() string {
	name := s.name
	if s.namespace != "" {
		name += "/" + s.namespace
	}
	subject := fmt.Sprintf("%s %q", s.subject.Kind, s.subject.Name)
	if s.subject.Namespace != "" {
		subject = fmt.Sprintf("%s %q", s.subject.Kind, s.subject.Name+"/"+s.subject.Namespace)
	}
	return fmt.Sprintf("%s %q of %s %q to %s", s.kind, name, s.ref.Kind, s.ref.Name, subject)
}

// visit calls fn with each rule that applies to the user, cluster-wide ones first, until fn returns
// false. Roles that cannot be resolved are skipped and reported.
func (a *Authorizer) visit(u user.Info, namespace string, fn func(fmt.Stringer, *rbacv1.PolicyRule) bool) error {
	var errs []error
	cluster, err := a.clusterRoleBindings.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, b := range cluster {
		subject := find(b.Subjects, u, "")
		if subject == nil {
			continue
		}
		more, err := a.visitRole(&source{"ClusterRoleBinding", "", b.Name, b.RoleRef, subject}, fn)
		if err != nil {
			errs = append(errs, err)
		}
		if !more {
			return nil
		}
	}
	if namespace == "" {
		return utilerrors.NewAggregate(errs)
	}
	local, err := a.roleBindings.RoleBindings(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, b := range local {
		subject := find(b.Subjects, u, namespace)
		if subject == nil {
			continue
		}
		more, err := a.visitRole(&source{"RoleBinding", namespace, b.Name, b.RoleRef, subject}, fn)
		if err != nil {
			errs = append(errs, err)
		}
		if !more {
			return nil
		}
	}
	return utilerrors.NewAggregate(errs)
}

func (a *Authorizer) visitRole(s *source, fn func(fmt.Stringer, *rbacv1.PolicyRule) bool) (bool, error) {
	rules, err := a.RoleRules(s.ref, s.namespace)
	if errors.IsNotFound(err) {
		return true, err
	}
	if err != nil {
		return true, fmt.Errorf("%s: %w", s, err)
	}
	for i := range rules {
		if !fn(s, &rules[i]) {
			return false, nil
		}
	}
	return true, nil
}

func find(subjects []rbacv1.Subject, u user.Info, namespace string) *rbacv1.Subject {
	for i := range subjects {
		if names(&subjects[i], u, namespace) {
			return &subjects[i]
		}
	}
	return nil
}
