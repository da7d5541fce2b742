package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Allows reports whether the rule covers the request.
func Allows(rule *rbacv1.PolicyRule, a authorizer.Attributes) bool {
	if !has(rule.Verbs, a.GetVerb(), rbacv1.VerbAll) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool { return urlMatches(url, a.GetPath()) })
	}
	return has(rule.APIGroups, a.GetAPIGroup(), rbacv1.APIGroupAll) &&
		resourceMatches(rule.Resources, a.GetResource(), a.GetSubresource()) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

func has(list []string, want, all string) bool {
	for _, s := range list {
		if s == want || s == all {
			return true
		}
	}
	return false
}

// resourceMatches knows the forms "pods", "pods/log", "*/scale" and "*". An access review may name
// "pods/log" as its resource, without a subresource: prometheus-operator checks its rights so.
func resourceMatches(rules []string, resource, subresource string) bool {
	for _, r := range rules {
		switch {
		case r == rbacv1.ResourceAll:
			return true
		case subresource == "":
			if r == resource {
				return true
			}
		case joins(r, resource, subresource), joins(r, "*", subresource):
			return true
		}
	}
	return false
}

// joins reports whether s is resource and subresource with a slash between them. It is called for
// each rule of each request, so it makes no string.
func joins(s, resource, subresource string) bool {
	rest, ok := strings.CutPrefix(s, resource)
	if !ok {
		return false
	}
	sub, ok := strings.CutPrefix(rest, "/")
	return ok && sub == subresource
}

// urlMatches knows exact paths, and prefixes that end in "*".
func urlMatches(rule, path string) bool {
	if prefix, ok := strings.CutSuffix(rule, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return rule == path
}

// names reports whether the subject of a binding in namespace (empty for a ClusterRoleBinding) is
// the user or one of the user's groups.
func names(s *rbacv1.Subject, u user.Info, namespace string) bool {
	switch s.Kind {
	case rbacv1.UserKind:
		return s.Name == u.GetName()
	case rbacv1.GroupKind:
		return slices.Contains(u.GetGroups(), s.Name)
	case rbacv1.ServiceAccountKind:
		ns := s.Namespace
		if ns == "" {
			ns = namespace
		}
		return ns != "" && serviceaccount.MatchesUsername(ns, s.Name, u.GetName())
	}
	return false
}
