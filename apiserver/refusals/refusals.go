// Package refusals notices when a part of the control plane lacks a right. The roles of controllers
// and of the scheduler are objects that users may change. A controller without a right does its
// work in part, and the cause would be hidden.
package refusals

import (
	"context"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
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

// most is the number of rights that are counted apart for a user. Verbs and resources are words of
// a URL, and so are the metric's labels: without a bound, a client could fill memory with them.
const most = 100

// others is the verb and the resource of all rights of a user beyond that.
const others = "others"

// right is a right that a user lacks.
type right struct{ user, verb, resource string }

// Authorizer counts and logs the refusals of its users. Make it with New.
type Authorizer struct {
	authorizer.Authorizer
	users  map[string]bool
	logger *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	logged map[right]time.Time
	known  map[string]int // rights in logged, by user
}

type probing struct{}

// Probing returns a context for a check whose refusal is not final: another check follows. It is
// not counted.
func Probing(ctx context.Context) context.Context { return context.WithValue(ctx, probing{}, true) }

// Questions are names of which one is enough, each with a context for its check. A refusal of the
// last one alone counts.
func Questions(ctx context.Context, names ...string) iter.Seq2[context.Context, string] {
	return func(ask func(context.Context, string) bool) {
		for i, name := range names {
			at := ctx
			if i < len(names)-1 {
				at = Probing(ctx)
			}
			if !ask(at, name) {
				return
			}
		}
	}
}

// New returns an authorizer that decides as another one, and notices refusals of the users. It is
// for requests and for the questions of admission and validation about their users, not for
// reviews: these refuse nothing, and name any user.
func New(of authorizer.Authorizer, users []string, logger *slog.Logger, now func() time.Time) *Authorizer {
	register()
	a := &Authorizer{Authorizer: of, users: map[string]bool{}, logger: logger, now: now, logged: map[right]time.Time{},
		known: map[string]int{}}
	for _, u := range users {
		a.users[u] = true
	}
	return a
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := a.Authorizer.Authorize(ctx, of)
	if decision != authorizer.DecisionAllow && a.concerns(of.GetUser()) && ctx.Value(probing{}) == nil {
		a.note(of, reason)
	}
	return decision, reason, err
}

// concerns reports whether a user is a part of the control plane in this process. A cloud
// controller manager has the account of node-controller, too, and a token for it: such a user has a
// UID.
func (a *Authorizer) concerns(who user.Info) bool {
	return who != nil && a.users[who.GetName()] && who.GetUID() == ""
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a *Authorizer) ConditionsAwareAuthorize(
	ctx context.Context, of authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
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
	counts, due := a.due(lacks)
	Total.WithLabelValues(counts.user, counts.verb, counts.resource).Inc()
	if due {
		a.logger.Warn(
			"a part of the control plane lacks a right: was its role changed? The leader adds what default roles lack, unless these are annotated "+
				"rbac.authorization.kubernetes.io/autoupdate: false", "user", lacks.user, "verb", lacks.verb,
			"resource",
			lacks.resource,
			"namespace", of.GetNamespace(), "name", of.GetName(), "reason", reason)
	}
}

// due returns the right that a refusal is counted as, and whether it is to be logged.
func (a *Authorizer) due(lacks right) (counts right, due bool) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	last, known := a.logged[lacks]
	if !known && a.known[lacks.user] >= most {
		lacks.verb, lacks.resource = others, others
		last, known = a.logged[lacks]
	}
	if !known {
		a.known[lacks.user]++
	}
	if due = !known || now.Sub(last) >= again; due {
		a.logged[lacks] = now
	}
	return lacks, due
}
