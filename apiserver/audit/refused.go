package audit

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/lru"
)

// refusals makes events of requests of nodes that the policy omits, in case that they are refused:
// a thief of an agent's disk tries which requests are allowed. A policy has no rules about answers.
// So each such request has an event, and Log drops those of requests that were not refused.
//
// Each node has a limit of such events: one that is refused in a loop, or stolen, could fill the
// file until it has nothing else.
type refusals struct {
	policy audit.PolicyRuleEvaluator
	nodes  *lru.Cache // *limit by user
	node   *losses
}

// The events a second that the refusals of one node may cause, how many at once, and of how many
// nodes the limits are kept.
const (
	refusedRate  = 1
	refusedBurst = 100
	refusedNodes = 10000
)

func newRefusals(policy audit.PolicyRuleEvaluator, logger *slog.Logger) *refusals {
	return &refusals{policy: policy, nodes: lru.New(refusedNodes),
		node: newLosses("nodes", "refused requests of nodes", logger)}
}

// onlyEnds are the stages whose events are not wanted: a refusal is known at the end.
var onlyEnds = []auditinternal.Stage{auditinternal.StageRequestReceived, auditinternal.StageResponseStarted,
	auditinternal.StagePanic}

// EvaluatePolicyRule implements audit.PolicyRuleEvaluator.
func (r *refusals) EvaluatePolicyRule(a authorizer.Attributes) audit.RequestAuditConfig {
	config := r.policy.EvaluatePolicyRule(a)
	if config.Level == auditinternal.LevelNone && a.GetUser() != nil &&
		slices.Contains(a.GetUser().GetGroups(), user.NodesGroup) {
		config = audit.RequestAuditConfig{Level: auditinternal.LevelMetadata, OmitStages: onlyEnds,
			OmitManagedFields: true}
	}
	return config
}

// drops reports whether an event exists for a refusal only, and there was none, or there are too
// many of that node. bounded is the event as it is written.
func (r *refusals) drops(e, bounded *auditinternal.Event) bool {
	if !r.extra(e) {
		return false
	}
	if e.ResponseStatus == nil ||
		e.ResponseStatus.Code != http.StatusForbidden && e.ResponseStatus.Code != http.StatusUnauthorized {
		return true
	}
	if r.limit(e.User.Username).takes(bounded) {
		return false
	}
	r.node.lost(fmt.Errorf("%s is refused too often", e.User.Username), e)
	return true
}

// limit returns the limit of a node. Two at once are harmless.
func (r *refusals) limit(node string) *limit {
	if l, ok := r.nodes.Get(node); ok {
		return l.(*limit)
	}
	l := newLimit(refusedRate, refusedBurst)
	r.nodes.Add(node, l)
	return l
}

// extra reports whether the policy does not want an event.
func (r *refusals) extra(e *auditinternal.Event) bool {
	if !slices.Contains(e.User.Groups, user.NodesGroup) {
		return false
	}
	a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: e.User.Username, Groups: e.User.Groups},
		Verb: e.Verb}
	if o := e.ObjectRef; o != nil {
		a.ResourceRequest = true
		a.APIGroup, a.APIVersion, a.Resource, a.Subresource, a.Namespace, a.Name = o.APIGroup, o.APIVersion, o.Resource,
			o.Subresource, o.Namespace, o.Name
	} else {
		a.Path, _, _ = strings.Cut(e.RequestURI, "?")
	}
	return r.policy.EvaluatePolicyRule(a).Level == auditinternal.LevelNone
}
