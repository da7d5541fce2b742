package admissionregistration

import (
	"context"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/resource"
)

func validatingWebhookConfigurations() resource.Resource {
	return &resource.Kind[admissionv1.ValidatingWebhookConfiguration]{
		GroupVersion:    admissionv1.SchemeGroupVersion,
		Name:            "validatingwebhookconfigurations",
		Singular:        "validatingwebhookconfiguration",
		Categories:      categories,
		ClusterScoped:   true,
		List:            &admissionv1.ValidatingWebhookConfigurationList{},
		Generation:      true,
		VersionedUpdate: true,
		Default: func(c *admissionv1.ValidatingWebhookConfiguration) {
			for i := range c.Webhooks {
				h := &c.Webhooks[i]
				defaultHook(&h.ClientConfig, h.Rules, &h.FailurePolicy, &h.MatchPolicy, &h.NamespaceSelector,
					&h.ObjectSelector, &h.TimeoutSeconds)
			}
		},
		Validate: func(_ context.Context, c, old *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
			var before []hook
			if old != nil {
				before = hooksOf(old.Webhooks)
			}
			return append(metadata(c, old), validateHooks(hooksOf(c.Webhooks), before, old != nil)...)
		},
		Warnings: func(_ context.Context, c, _ *admissionv1.ValidatingWebhookConfiguration) []string {
			return hookWarnings(hooksOf(c.Webhooks))
		},
		Columns: hookColumns(),
		Row: func(c *admissionv1.ValidatingWebhookConfiguration, now time.Time) []any {
			return []any{c.Name, int64(len(c.Webhooks)), resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func mutatingWebhookConfigurations() resource.Resource {
	return &resource.Kind[admissionv1.MutatingWebhookConfiguration]{
		GroupVersion:    admissionv1.SchemeGroupVersion,
		Name:            "mutatingwebhookconfigurations",
		Singular:        "mutatingwebhookconfiguration",
		Categories:      categories,
		ClusterScoped:   true,
		List:            &admissionv1.MutatingWebhookConfigurationList{},
		Generation:      true,
		VersionedUpdate: true,
		Default: func(c *admissionv1.MutatingWebhookConfiguration) {
			for i := range c.Webhooks {
				h := &c.Webhooks[i]
				defaultHook(&h.ClientConfig, h.Rules, &h.FailurePolicy, &h.MatchPolicy, &h.NamespaceSelector,
					&h.ObjectSelector, &h.TimeoutSeconds)
				setDefault(&h.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
			}
		},
		Validate: func(_ context.Context, c, old *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
			var before []hook
			if old != nil {
				before = old.Webhooks
			}
			return append(metadata(c, old), validateHooks(c.Webhooks, before, old != nil)...)
		},
		Warnings: func(_ context.Context, c, _ *admissionv1.MutatingWebhookConfiguration) []string {
			return hookWarnings(c.Webhooks)
		},
		Columns: hookColumns(),
		Row: func(c *admissionv1.MutatingWebhookConfiguration, now time.Time) []any {
			return []any{c.Name, int64(len(c.Webhooks)), resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func hookColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		resource.Name(),
		resource.Column("Webhooks", "integer", "How many webhooks the configuration has."),
		resource.Age(),
	}
}

// hook is a webhook of either kind. The reinvocation policy of a validating one is nil.
type hook = admissionv1.MutatingWebhook

func hooksOf(list []admissionv1.ValidatingWebhook) []hook {
	hooks := make([]hook, len(list))
	for i, h := range list {
		hooks[i] = hook{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy,
			MatchPolicy: h.MatchPolicy, NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector,
			SideEffects: h.SideEffects, TimeoutSeconds: h.TimeoutSeconds,
			AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		}
	}
	return hooks
}

func defaultHook(client *admissionv1.WebhookClientConfig, rules []admissionv1.RuleWithOperations,
	failure **admissionv1.FailurePolicyType,
	match **admissionv1.MatchPolicyType, namespaces, objects **metav1.LabelSelector, timeout **int32) {
	setDefault(failure, admissionv1.Fail)
	setDefault(match, admissionv1.Equivalent)
	setDefault(namespaces, metav1.LabelSelector{})
	setDefault(objects, metav1.LabelSelector{})
	setDefault(timeout, 10)
	if client.Service != nil {
		setDefault(&client.Service.Port, 443)
	}
	for i := range rules {
		defaultRule(&rules[i].Rule)
	}
}

func defaultRule(r *admissionv1.Rule) { setDefault(&r.Scope, admissionv1.AllScopes) }

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}

// hookWarnings warns of rules for resources for which webhooks are never called. A wildcard gets no
// warning, because it does not name them.
func hookWarnings(hooks []hook) []string {
	var warnings []string
	for i, h := range hooks {
		for j, rule := range h.Rules {
			if slices.Contains(rule.APIGroups, "*") || slices.Contains(rule.Resources, "*") {
				continue
			}
			at := field.NewPath("webhooks").Index(i).Child("rules").Index(j)
			for _, r := range ExcludedResources() {
				if slices.Contains(rule.APIGroups, r.Group) && slices.Contains(rule.Resources, r.Resource) {
					warnings = append(warnings, noEffect(at, r))
				}
			}
		}
	}
	return warnings
}

func noEffect(at *field.Path, r schema.GroupResource) string {
	return fmt.Sprintf("%s: %s is excluded from admission webhooks; this rule will have no effect", at, r)
}

// ExcludedResources are those for which admission webhooks and policies are never called: reviews
// of users and rights. A webhook that refused them could lock all users out.
func ExcludedResources() []schema.GroupResource {
	return []schema.GroupResource{
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	}
}
