package audit

import (
	"net/http"
	"slices"
	"strings"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// refusals makes events of requests of nodes that the policy does not want, in case that they are
// refused: whoever has stolen an agent's disk tries what it may do. A policy has no rules about
// answers. So each such request has an event, and Log drops those of requests that were not
// refused.
type refusals struct{ policy audit.PolicyRuleEvaluator }

// onlyEnds are the stages whose events are not wanted: a refusal is known at the end.
var onlyEnds = []auditinternal.Stage{auditinternal.StageRequestReceived, auditinternal.StageResponseStarted, auditinternal.StagePanic}

// EvaluatePolicyRule implements audit.PolicyRuleEvaluator.
func (r refusals) EvaluatePolicyRule(a authorizer.Attributes) audit.RequestAuditConfig {
	config := r.policy.EvaluatePolicyRule(a)
	if config.Level == auditinternal.LevelNone && a.GetUser() != nil && slices.Contains(a.GetUser().GetGroups(), user.NodesGroup) {
		config = audit.RequestAuditConfig{Level: auditinternal.LevelMetadata, OmitStages: onlyEnds, OmitManagedFields: true}
	}
	return config
}

// unwanted reports whether an event exists for a refusal only, and there was none.
func (r refusals) unwanted(e *auditinternal.Event) bool {
	if e.ResponseStatus != nil && (e.ResponseStatus.Code == http.StatusForbidden || e.ResponseStatus.Code == http.StatusUnauthorized) ||
		!slices.Contains(e.User.Groups, user.NodesGroup) {
		return false
	}
	a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: e.User.Username, Groups: e.User.Groups}, Verb: e.Verb}
	if o := e.ObjectRef; o != nil {
		a.ResourceRequest = true
		a.APIGroup, a.APIVersion, a.Resource, a.Subresource, a.Namespace, a.Name = o.APIGroup, o.APIVersion, o.Resource, o.Subresource, o.Namespace, o.Name
	} else {
		a.Path, _, _ = strings.Cut(e.RequestURI, "?")
	}
	return r.policy.EvaluatePolicyRule(a).Level == auditinternal.LevelNone
}
