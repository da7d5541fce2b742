package registry

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/barque/barque/apiserver/groups/admissionregistration"
)

// initializers hand the parts to the plugins of the library, which declare their needs by
// their methods.
func (p *Parts) initializers() (admission.PluginInitializers, error) {
	loaders, err := admissionregistration.ManifestLoaders()
	if err != nil {
		return nil, err
	}
	return admission.PluginInitializers{
		initializer.NewAPIServerIDInitializer(p.ServerID),
		initializer.New(p.Client, p.Dynamic, p.Informers, p.Authorizer, utilfeature.DefaultFeatureGate, p.Version,
			p.Stopped, p.Mapper),
		webhookinitializer.NewPluginInitializer(p.WebhookUsers, p.Services),
		special{p, loaders},
	}, nil
}

type special struct {
	parts   *Parts
	loaders *initializer.ManifestLoaders
}

// Initialize implements admission.PluginInitializer.
func (s special) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsExcludedAdmissionResources); ok {
		wants.SetExcludedAdmissionResources(admissionregistration.ExcludedResources())
	}
	if wants, ok := plugin.(initializer.WantsManifestLoaders); ok {
		wants.SetManifestLoaders(s.loaders)
	}
	if policies, ok := plugin.(*mutatingpolicy.Plugin); ok {
		policies.SetExternalKubeClientSet(policyClient{
			Interface: s.parts.Client,
			policies:  s.parts.Informers.Admissionregistration().V1().MutatingAdmissionPolicies().Lister(),
			versions:  s.parts.GroupVersions,
		})
	}
}
