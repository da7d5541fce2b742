// Package policystatus checks the types in the expressions of ValidatingAdmissionPolicies. It
// writes the findings and the checked generation into the status of each.
//
// An expression is checked against the schemas of the kinds that the policy names. The findings are
// warnings: an expression may be right despite them. A kind that is not served is not checked,
// neither now nor when it appears. MutatingAdmissionPolicies have no status.
package policystatus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller checks the types of policies.
type Controller struct {
	cfg      Config
	policies cache.SharedIndexInformer
	list     admissionlisters.ValidatingAdmissionPolicyLister
}

// New asks the factory for the informer it needs; it is called before it is started.
func New(cfg Config) (*Controller, error) {
	policies := cfg.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	return &Controller{cfg: cfg, policies: policies.Informer(), list: policies.Lister()}, nil
}

// Run checks for one term of leadership. One policy is checked at a time: a check may read the
// schemas of ten kinds.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	t.loop = runtime.NewLoop("validatingadmissionpolicy-status", 1, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.policies, func(_, now *admissionv1.ValidatingAdmissionPolicy) []runtime.Key {
		if now == nil || !due(now) {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client kubernetes.Interface
	loop   *runtime.Loop
}

// due reports whether a policy has changed since it was checked.
func due(p *admissionv1.ValidatingAdmissionPolicy) bool {
	return p.Generation > p.Status.ObservedGeneration
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	policy, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || !due(policy) {
		return 0, err
	}
	policy = policy.DeepCopy()
	policy.Status.ObservedGeneration = policy.Generation
	policy.Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: check(t.client.Discovery(), policy)}
	policy, err = t.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().UpdateStatus(ctx, policy,
		metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("writing the type check of ValidatingAdmissionPolicy %s: %w", key.Name, err)
	}
	t.loop.Writes().Wrote(key, t.policies, policy.ResourceVersion)
	return 0, nil
}

// check returns the warnings about a policy. It keeps no schemas: policies change rarely, and
// schemas are large.
func check(
	api discovery.DiscoveryInterface, policy *admissionv1.ValidatingAdmissionPolicy,
) []admissionv1.ExpressionWarning {
	checker := &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: api},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(api)),
	}
	return checker.Check(policy)
}
