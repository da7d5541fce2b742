package authorizers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/apiserver/pkg/authorization/union"
	configmetrics "k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/barque/barque/apiserver/abac"
	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/internal/clusterusers"
)

// Config of the authorizers. All fields are required.
type Config struct {
	Options *Options
	// Server is this server's name, for metrics.
	Server string
	Logger *slog.Logger
}

// Authorizers are configured. Their owner calls Run, and the API server Assemble before that.
type Authorizers struct {
	cfg      Config
	config   *apiserver.AuthorizationConfiguration
	policies *abac.Authorizer // nil without ABAC
	files    configfile.Files
	builtin  Builtin
	current  atomic.Pointer[generation]
	// assembled is closed when builtin is set.
	assembled chan struct{}
}

// Builtin are the authorizers of the API server itself.
type Builtin struct {
	Node, RBAC authorizer.Authorizer
	Rules      authorizer.RuleResolver // of RBAC
}

// Default returns Node and RBAC, which nothing can change.
func Default() *Authorizers {
	o := NewOptions()
	config, err := o.ofFlags()
	if err != nil {
		panic(err) // the defaults are constants
	}
	return &Authorizers{cfg: Config{Options: o}, config: config, assembled: make(chan struct{})}
}

// New reads the files.
func New(cfg Config) (*Authorizers, error) {
	o := cfg.Options
	config, data, err := o.read()
	if err != nil {
		return nil, err
	}
	if err := o.about(o.fits(config)); err != nil {
		return nil, err
	}
	a := &Authorizers{cfg: cfg, config: config, assembled: make(chan struct{})}
	if o.ConfigFile != "" {
		configmetrics.RegisterMetrics()
		configmetrics.RecordAuthorizationConfigLastConfigInfo(cfg.Server, string(data))
		a.files = append(a.files,
			configfile.New(configfile.Config{Flag: configFlag, Path: o.ConfigFile, Logger: cfg.Logger, Apply: a.reload,
				Reloaded: func(data []byte, err error) {
					if err != nil {
						configmetrics.RecordAuthorizationConfigAutomaticReloadFailure(cfg.Server)
						return
					}
					configmetrics.RecordAuthorizationConfigAutomaticReloadSuccess(cfg.Server, string(data))
				}}, data))
	}
	if o.PolicyFile != "" {
		policies, data, err := o.policies()
		if err != nil {
			return nil, err
		}
		a.policies = policies
		a.files = append(a.files,
			configfile.New(configfile.Config{Flag: policyFlag, Path: o.PolicyFile, Logger: cfg.Logger,
				Apply: func(_ context.Context, data []byte) error { return policies.Replace(data) }}, data))
	}
	if o.WebhookConfigFile != "" {
		file, err := configfile.Fixed(webhookFlag, o.WebhookConfigFile, cfg.Logger)
		if err != nil {
			return nil, err
		}
		a.files = append(a.files, file)
	}
	return a, nil
}

// Run looks for changed files, from Assemble on until the context ends.
func (a *Authorizers) Run(ctx context.Context) error {
	select {
	case <-a.assembled:
	case <-ctx.Done():
		return nil
	}
	return a.files.Run(ctx)
}

// Files returns the state of the files, and of the modes, by flag.
func (a *Authorizers) Files() []configfile.State {
	var out []configfile.State
	if a.cfg.Options.ConfigFile == "" {
		out = append(out,
			configfile.State{Flag: modeFlag, Hash: configfile.Hash([]byte(strings.Join(a.cfg.Options.Modes, ",")))})
	}
	out = append(out, a.files.States()...)
	if g := a.current.Load(); g != nil {
		for i := range out {
			if path := g.stale(); out[i].Flag == configFlag && out[i].Problem == "" && path != "" {
				out[i].Problem = fmt.Sprintf(
					"the kubeconfig %s has changed since it was read, with the last change of %s: change that, too (a comment will do), or restart the server", path, out[i].Path)
			}
		}
	}
	slices.SortFunc(out, func(a, b configfile.State) int { return cmp.Compare(a.Flag, b.Flag) })
	return out
}

// Assemble returns the authorizer of all requests, and the resolver of users' rules.
func (a *Authorizers) Assemble(b Builtin) (authorizer.Authorizer, authorizer.RuleResolver, error) {
	own, err := union.New(union.NamedAuthorizer{AuthorizerName: "node", Authorizer: b.Node},
		union.NamedAuthorizer{AuthorizerName: "rbac", Authorizer: b.RBAC})
	if err != nil {
		return nil, nil, err
	}
	a.builtin = b
	first, err := a.generation(a.config)
	if err != nil {
		return nil, nil, err
	}
	a.current.Store(first)
	close(a.assembled)
	o := &ordered{masters: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), own: own, rules: b.Rules,
		configured: &a.current}
	return o, o, nil
}

// generation is a configuration in effect.
type generation struct {
	authorizer.Authorizer
	rules   authorizer.RuleResolver
	hasRBAC bool
	clients map[string]string // hash of each webhook's kubeconfig, by path
}

// stale returns the path of a webhook's kubeconfig that has changed since it was read, or "". A
// file that cannot be read now has not changed: the webhook keeps its configuration.
func (g *generation) stale() string {
	for _, path := range slices.Sorted(maps.Keys(g.clients)) {
		if data, err := configfile.Read(path); err == nil && configfile.Hash(data) != g.clients[path] {
			return path
		}
	}
	return ""
}

func (a *Authorizers) reload(_ context.Context, data []byte) error {
	config, err := Load(data)
	if err != nil {
		return err
	}
	if err := a.cfg.Options.fits(config); err != nil {
		return err
	}
	g, err := a.generation(config)
	if err != nil {
		return err
	}
	a.current.Store(g)
	return nil
}

// generation makes the authorizers of a valid configuration.
func (a *Authorizers) generation(config *apiserver.AuthorizationConfiguration) (*generation, error) {
	g := &generation{clients: map[string]string{}}
	var chain []union.NamedAuthorizer
	var rules []authorizer.RuleResolver
	for _, c := range config.Authorizers {
		var next authorizer.Authorizer
		switch string(c.Type) {
		case modeNode:
			next = a.builtin.Node
		case modeRBAC:
			next, g.hasRBAC = a.builtin.RBAC, true
			rules = append(rules, a.builtin.Rules)
		case modeABAC:
			next = a.policies
			rules = append(rules, a.policies)
		case modeWebhook:
			path := *c.Webhook.ConnectionInfo.KubeConfigFile
			data, err := configfile.Read(path)
			if err != nil {
				return nil, a.cfg.Options.ofWebhook(c.Name, err)
			}
			g.clients[path] = configfile.Hash(data)
			w, err := newWebhook(c.Name, c.Webhook)
			if err != nil {
				return nil, a.cfg.Options.ofWebhook(c.Name, err)
			}
			next = w
			rules = append(rules, w)
		default:
			return nil, fmt.Errorf("there is no authorizer of type %q", c.Type)
		}
		chain = append(chain,
			union.NamedAuthorizer{AuthorizerName: c.Name,
				Authorizer: metrics.InstrumentedAuthorizer(string(c.Type), c.Name, next)})
	}
	var err error
	if g.Authorizer, err = union.New(chain...); err != nil {
		return nil, err
	}
	g.rules = union.NewRuleResolvers(rules...)
	return g, nil
}

// webhookObserver counts a webhook's calls and the evaluations of its conditions, as upstream does.
type webhookObserver struct {
	webhookmetrics.NoopRequestMetrics
	webhookmetrics.WebhookMetrics
	authorizationcel.MatcherMetrics
}

func newWebhook(name string, c *apiserver.WebhookConfiguration) (*webhook.WebhookAuthorizer, error) {
	config, err := client(c)
	if err != nil {
		return nil, err
	}
	onError := authorizer.DecisionNoOpinion
	if c.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	ttl := func(cached bool, ttl time.Duration) time.Duration {
		if !cached {
			return 0
		}
		return ttl
	}
	return webhook.New(config, c.SubjectAccessReviewVersion, ttl(c.CacheAuthorizedRequests, c.AuthorizedTTL.Duration),
		ttl(c.CacheUnauthorizedRequests, c.UnauthorizedTTL.Duration),
		*webhook.DefaultRetryBackoff(), onError, c.MatchConditions, name,
		webhookObserver{WebhookMetrics: webhookmetrics.NewWebhookMetrics(),
			MatcherMetrics: authorizationcel.NewMatcherMetrics()}, compiler())
}

// ordered calls the authorizers in the order of the package's comment.
type ordered struct {
	masters    authorizer.Authorizer
	own        authorizer.Authorizer // Node and RBAC
	rules      authorizer.RuleResolver
	configured *atomic.Pointer[generation]
}

// Authorize implements authorizer.Authorizer.
func (o *ordered) Authorize(ctx context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
	if decision, reason, err := o.masters.Authorize(ctx, r); decision == authorizer.DecisionAllow {
		return decision, reason, err
	}
	if own := takesOwn(r); own != "" && !clusterusers.HasAdmin(r.GetUser().GetGroups()) {
		return authorizer.DecisionDeny,
			own + " is a part of the control plane, or the group of administrators, and only these may act as it", nil
	}
	switch precedence(r) {
	case ownOnly:
		return o.own.Authorize(ctx, r)
	case ownFirst:
		decision, _, err := o.own.Authorize(ctx, r)
		if decision == authorizer.DecisionAllow {
			return decision, "", err
		}
		next, reason, nextErr := o.configured.Load().Authorize(ctx, r)
		if next != authorizer.DecisionAllow {
			nextErr = errors.Join(nextErr, err)
		}
		return next, reason, nextErr
	}
	return o.configured.Load().Authorize(ctx, r)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer. No authorizer here has conditions.
func (o *ordered) ConditionsAwareAuthorize(
	ctx context.Context, r authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(o.Authorize(ctx, r))
}

// EvaluateConditions implements authorizer.Authorizer.
func (o *ordered) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver.
func (o *ordered) RulesFor(
	ctx context.Context, who user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	rank, g := precedenceOf(who), o.configured.Load()
	switch {
	case rank == ownOnly:
		return o.rules.RulesFor(ctx, who, namespace)
	case rank == ownFirst && !g.hasRBAC:
		return union.NewRuleResolvers(o.rules, g.rules).RulesFor(ctx, who, namespace)
	}
	return g.rules.RulesFor(ctx, who, namespace)
}
