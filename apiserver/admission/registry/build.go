package registry

import (
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
)

// Build makes the chain. serves reports whether the server has a resource.
func Build(s Settings, parts *Parts, serves func(schema.GroupVersionResource) bool) (admission.Interface, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	configs, err := s.read()
	if err != nil {
		return nil, err
	}
	made, configured := admission.NewPlugins(), map[string]bool{}
	var names []string
	for _, p := range plugins() {
		missing := slices.ContainsFunc(p.needs, func(r schema.GroupVersionResource) bool { return !serves(r) })
		if !s.chosen(&p) || missing {
			continue
		}
		made.Register(p.name, func(config io.Reader) (admission.Interface, error) {
			configured[p.name] = config != nil
			return p.create(parts, config)
		})
		names = append(names, p.name)
	}
	initializers, err := parts.initializers()
	if err != nil {
		return nil, err
	}
	sparer := sparer{parts.Informers.Admissionregistration().V1(),
		func(plugin string) bool { return configured[plugin] }}
	return made.NewFromPlugins(names, configs, initializers, admission.Decorators{
		sparer, admission.DecoratorFunc(admissionmetrics.WithControllerMetrics),
	})
}
