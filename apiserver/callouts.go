package apiserver

import (
	"slices"

	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/apiserver/callouts"
	"github.com/barque/barque/apiserver/services"
)

// failing finds the objects for which this server has to call other programs and cannot.
type failing struct {
	synced []cache.InformerSynced
	callouts.Sources
}

// newFailing reads the informers of this server. A plugin that is switched off calls no webhook.
func (s *Server) newFailing(resolver *services.Resolver) *failing {
	f := &failing{Sources: callouts.Sources{Resolve: resolver.ResolveEndpoint}}
	rules := s.informers.Admissionregistration().V1()
	if !slices.Contains(s.cfg.Admission.Disable, validatingwebhook.PluginName) {
		f.Validating, f.synced = rules.ValidatingWebhookConfigurations().Lister(),
			append(f.synced, rules.ValidatingWebhookConfigurations().Informer().HasSynced)
	}
	if !slices.Contains(s.cfg.Admission.Disable, mutatingwebhook.PluginName) {
		f.Mutating, f.synced = rules.MutatingWebhookConfigurations().Lister(),
			append(f.synced, rules.MutatingWebhookConfigurations().Informer().HasSynced)
	}
	definitions := s.chain.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions()
	extensions := s.chain.aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices()
	f.Definitions, f.APIServices = definitions.Lister(), extensions.Lister()
	f.synced = append(f.synced, definitions.Informer().HasSynced, extensions.Informer().HasSynced,
		s.informers.Core().V1().Services().Informer().HasSynced,
		s.informers.Discovery().V1().EndpointSlices().Informer().HasSynced)
	return f
}

// FailingCalls returns the objects for which this server has to call other programs and cannot, as
// it knows them by its informers; none before these are synced.
func (s *Server) FailingCalls() ([]callouts.Failing, error) {
	for _, synced := range s.failing.synced {
		if !synced() {
			return nil, nil
		}
	}
	return s.failing.Find()
}
