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
)

// byUsers are the plugins whose rules users write.
var byUsers = []string{mutatingpolicy.PluginName, mutatingwebhook.PluginName, validatingpolicy.PluginName, validatingwebhook.PluginName}

// sparingOwn keeps rules of users away from what the server itself writes, which nobody could
// repair: a cluster that lacks it does not start.
func sparingOwn(plugin admission.Interface, name string) admission.Interface {
	if !slices.Contains(byUsers, name) {
		return plugin
	}
	return sparing{plugin}
}

type sparing struct{ admission.Interface }

// isOwn tells whether the server itself writes, or its controllers the endpoints of the Service by
// which pods find the API. A user of that name and group may change webhooks and policies anyway.
func isOwn(a admission.Attributes) bool {
	u := a.GetUserInfo()
	if u == nil || !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return false
	}
	if u.GetName() == user.APIServerUser {
		return true
	}
	resource := a.GetResource().Resource
	return u.GetName() == user.KubeControllerManager && a.GetNamespace() == metav1.NamespaceDefault && a.GetName() == "kubernetes" &&
		(resource == "endpoints" || resource == "endpointslices")
}

// Admit implements admission.MutationInterface.
func (s sparing) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if m, ok := s.Interface.(admission.MutationInterface); ok && !isOwn(a) {
		return m.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (s sparing) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := s.Interface.(admission.ValidationInterface); ok && !isOwn(a) {
		return v.Validate(ctx, a, o)
	}
	return nil
}
