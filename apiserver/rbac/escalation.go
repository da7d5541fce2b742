package rbac

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// Guard refuses writes of roles and bindings that would grant more than the writer has, unless the
// writer may "escalate" the role or "bind" the referenced one. It runs as validating admission so
// that it sees the object to be stored, with any verb.
type Guard struct {
	*admission.Handler
	rules *Authorizer
	authz authorizer.UnconditionalAuthorizer
}

var _ admission.ValidationInterface = (*Guard)(nil)

// NewGuard returns a guard that reads the writer's rules from rules and checks the verbs escalate
// and bind with authz.
func NewGuard(rules *Authorizer, authz authorizer.UnconditionalAuthorizer) *Guard {
	return &Guard{admission.NewHandler(admission.Create, admission.Update), rules, authz}
}

// Validate implements admission.ValidationInterface.
func (g *Guard) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	gr := a.GetResource().GroupResource()
	if gr.Group != rbacv1.GroupName || a.GetSubresource() != "" ||
		slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	switch obj := a.GetObject().(type) {
	case *rbacv1.Role:
		return g.role(ctx, a, obj.Rules, nil)
	case *rbacv1.ClusterRole:
		return g.role(ctx, a, obj.Rules, obj.AggregationRule)
	case *rbacv1.RoleBinding:
		return g.binding(ctx, a, obj.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return g.binding(ctx, a, obj.RoleRef)
	}
	return nil
}

func (g *Guard) role(
	ctx context.Context, a admission.Attributes, rules []rbacv1.PolicyRule, aggregation *rbacv1.AggregationRule,
) error {
	if grantsSame(a.GetOldObject(), rules, aggregation) ||
		g.may(ctx, a, "escalate", a.GetResource().Resource, a.GetName(), a.GetNamespace()) {
		return nil
	}
	if aggregation != nil && len(aggregation.ClusterRoleSelectors) > 0 {
		// Any role with the labels becomes part of the role, so the writer must have all rights.
		rules = append(slices.Clone(rules),
			rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
			rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})
	}
	return g.covers(a, rules)
}

func (g *Guard) binding(ctx context.Context, a admission.Attributes, ref rbacv1.RoleRef) error {
	if old := a.GetOldObject(); old != nil && bindsSame(old, a.GetObject()) {
		return nil
	}
	resource := "roles"
	if ref.Kind == "ClusterRole" {
		resource = "clusterroles"
	}
	if g.may(ctx, a, "bind", resource, ref.Name, a.GetNamespace()) {
		return nil
	}
	rules, err := g.rules.RoleRules(ref, a.GetNamespace())
	if errors.IsNotFound(err) {
		return errors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, ref.Name)
	}
	if err != nil {
		return errors.NewInternalError(fmt.Errorf("resolving the role of the binding: %w", err))
	}
	return g.covers(a, rules)
}

// covers refuses unless the writer has every one of rules.
func (g *Guard) covers(a admission.Attributes, rules []rbacv1.PolicyRule) error {
	// An error reports broken bindings of the writer; the rules found count nevertheless.
	own, resolveErr := g.rules.Rules(a.GetUserInfo(), a.GetNamespace())
	ok, missing := validation.Covers(own, rules)
	if ok {
		return nil
	}
	err := fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		a.GetUserInfo().GetName(), a.GetUserInfo().GetGroups(), describeAll(missing))
	if resolveErr != nil {
		err = fmt.Errorf("%w; resolution errors: %w", err, resolveErr)
	}
	return errors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), err)
}

func (g *Guard) may(ctx context.Context, a admission.Attributes, verb, resource, name, namespace string) bool {
	decision, _, err := g.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: namespace, APIGroup: rbacv1.GroupName, APIVersion: "v1",
		Resource: resource, Name: name, ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}

// describe prints a rule briefly.
func describe(r *rbacv1.PolicyRule) string {
	var b strings.Builder
	for _, f := range []struct {
		name string
		list []string
	}{
		{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"ResourceNames", r.ResourceNames},
		{"NonResourceURLs", r.NonResourceURLs}, {"Verbs", r.Verbs},
	} {
		if len(f.list) > 0 {
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s:%q", f.name, f.list)
		}
	}
	return "{" + b.String() + "}"
}

// grantsSame reports whether an update leaves the rights of the role as they are.
func grantsSame(old runtime.Object, rules []rbacv1.PolicyRule, aggregation *rbacv1.AggregationRule) bool {
	switch o := old.(type) {
	case *rbacv1.Role:
		return apiequality.Semantic.DeepEqual(o.Rules, rules)
	case *rbacv1.ClusterRole:
		return apiequality.Semantic.DeepEqual(o.Rules, rules) &&
			apiequality.Semantic.DeepEqual(o.AggregationRule, aggregation)
	}
	return false
}

// bindsSame reports whether an update leaves the role and the subjects of a binding as they are.
func bindsSame(old, obj runtime.Object) bool {
	switch o := old.(type) {
	case *rbacv1.RoleBinding:
		n, ok := obj.(*rbacv1.RoleBinding)
		return ok && o.RoleRef == n.RoleRef && apiequality.Semantic.DeepEqual(o.Subjects, n.Subjects)
	case *rbacv1.ClusterRoleBinding:
		n, ok := obj.(*rbacv1.ClusterRoleBinding)
		return ok && o.RoleRef == n.RoleRef && apiequality.Semantic.DeepEqual(o.Subjects, n.Subjects)
	}
	return false
}
