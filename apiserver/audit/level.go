package audit

import (
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// LevelOf returns the level that the policy gives to a user's request for a resource in a
// namespace, such as pods/exec or deployments.apps.
func (l *Log) LevelOf(u user.Info, verb, resource string) string {
	resource, sub, _ := strings.Cut(resource, "/")
	resource, group, _ := strings.Cut(resource, ".")
	a := authorizer.AttributesRecord{User: u, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: resource,
		Subresource: sub,
		Namespace:   "default", Name: "x", ResourceRequest: true}
	return string(l.Policy.EvaluatePolicyRule(a).Level)
}
