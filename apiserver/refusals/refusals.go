// Package refusals notices when a part of the control plane lacks a right. The roles of
// controllers and of the scheduler are objects that users may change. A controller without a right
// does its work in part, and nobody would see why.
package refusals

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Total counts the refused requests of users of the control plane.
var Total = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "barque_control_plane_refused_total",
	Help:           "Requests of controllers and of the scheduler that were refused because their role lacks the right, by user, verb and resource.",
	StabilityLevel: metrics.ALPHA,
}, []string{"user", "verb", "resource"})

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Total) })

// again is the time between two log lines about the same right.
const again = time.Minute

// right is what a user lacks.
type right struct{ user, verb, resource string }

// Authorizer counts and logs what its users are refused. Make it with New.
type Authorizer struct {
	authorizer.Authorizer
	users  map[string]bool
	logger *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	logged map[right]time.Time
}

// New returns an authorizer that decides as another one, and notices what users are refused.
func New(of authorizer.Authorizer, users []string, logger *slog.Logger, now func() time.Time) *Authorizer {
	register()
	a := &Authorizer{Authorizer: of, users: map[string]bool{}, logger: logger, now: now, logged: map[right]time.Time{}}
	for _, u := range users {
		a.users[u] = true
	}
	return a
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := a.Authorizer.Authorize(ctx, of)
	if decision != authorizer.DecisionAllow && of.GetUser() != nil && a.users[of.GetUser().GetName()] {
		a.note(of, reason)
	}
	return decision, reason, err
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, of authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, of))
}

func (a *Authorizer) note(of authorizer.Attributes, reason string) {
	lacks := right{of.GetUser().GetName(), of.GetVerb(), of.GetPath()}
	if of.IsResourceRequest() {
		lacks.resource = of.GetResource()
		if sub := of.GetSubresource(); sub != "" {
			lacks.resource += "/" + sub
		}
		lacks.resource = strings.TrimSuffix(lacks.resource+"."+of.GetAPIGroup(), ".")
	}
	Total.WithLabelValues(lacks.user, lacks.verb, lacks.resource).Inc()
	now := a.now()
	a.mu.Lock()
	last, known := a.logged[lacks]
	due := !known || now.Sub(last) >= again
	if due {
		a.logged[lacks] = now
	}
	a.mu.Unlock()
	if due {
		a.logger.Warn("a part of the control plane lacks a right: was its role changed? The leader adds what default roles lack, unless these are annotated "+
			"rbac.authorization.kubernetes.io/autoupdate: false", "user", lacks.user, "verb", lacks.verb, "resource", lacks.resource,
			"namespace", of.GetNamespace(), "name", of.GetName(), "reason", reason)
	}
}
