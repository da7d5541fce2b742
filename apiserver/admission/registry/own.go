package registry

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/apiserver/rbac"
)

// rulesOf are the informers of the objects that configure some plugins. A plugin without an entry
// has no rules of users.
var rulesOf = map[string]func(admissioninformers.Interface) cache.SharedIndexInformer{
	mutatingpolicy.PluginName: func(i admissioninformers.Interface) cache.SharedIndexInformer {
		return i.MutatingAdmissionPolicies().Informer()
	},
	mutatingwebhook.PluginName: func(i admissioninformers.Interface) cache.SharedIndexInformer {
		return i.MutatingWebhookConfigurations().Informer()
	},
	validatingpolicy.PluginName: func(i admissioninformers.Interface) cache.SharedIndexInformer {
		return i.ValidatingAdmissionPolicies().Informer()
	},
	validatingwebhook.PluginName: func(i admissioninformers.Interface) cache.SharedIndexInformer {
		return i.ValidatingWebhookConfigurations().Informer()
	},
}

// sparer decorates the plugins whose rules users write.
type sparer struct {
	informers admissioninformers.Interface
	// configured reports whether a plugin has a configuration. It may name files with more rules.
	configured func(plugin string) bool
}

// Decorate implements admission.Decorator.
func (s sparer) Decorate(plugin admission.Interface, name string) admission.Interface {
	informer, ok := rulesOf[name]
	if !ok {
		return plugin
	}
	out := sparing{Interface: plugin}
	if !s.configured(name) {
		out.rules = informer(s.informers)
	}
	return out
}

// sparing exempts the server's own writes from the rules of users: a cluster without those objects
// does not start, and then the rule could not be repaired. It also skips the plugin while there are
// no rules.
type sparing struct {
	admission.Interface
	rules cache.SharedIndexInformer // nil where there may be others
}

// concerns reports whether a plugin is to see a request.
func (s sparing) concerns(a admission.Attributes) bool {
	none := s.rules != nil && s.rules.HasSynced() && len(s.rules.GetIndexer().ListKeys()) == 0
	return !none && !isOwn(a)
}

// isOwn reports whether the server itself writes, or its controllers the endpoints of the Service
// by which pods find the API. No token and no requested certificate is of these users, and only
// administrators may impersonate them.
func isOwn(a admission.Attributes) bool {
	u := a.GetUserInfo()
	if u == nil {
		return false
	}
	if u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return true
	}
	resource := a.GetResource().Resource
	return u.GetName() == rbac.APIEndpointsUser && a.GetNamespace() == metav1.NamespaceDefault &&
		a.GetName() == "kubernetes" &&
		(resource == "endpoints" || resource == "endpointslices")
}

// Admit implements admission.MutationInterface.
func (s sparing) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if m, ok := s.Interface.(admission.MutationInterface); ok && s.concerns(a) {
		return m.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (s sparing) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := s.Interface.(admission.ValidationInterface); ok && s.concerns(a) {
		return v.Validate(ctx, a, o)
	}
	return nil
}
