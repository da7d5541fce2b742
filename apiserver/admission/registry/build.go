package registry

import (
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
)

// Build makes the chain. serves tells which resources the server has.
func Build(s Settings, parts *Parts, serves func(schema.GroupVersionResource) bool) (admission.Interface, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	configs, err := s.read()
	if err != nil {
		return nil, err
	}
	made := admission.NewPlugins()
	var names []string
	for _, p := range plugins() {
		missing := slices.ContainsFunc(p.needs, func(r schema.GroupVersionResource) bool { return !serves(r) })
		if !s.chosen(&p) || missing {
			continue
		}
		made.Register(p.name, func(config io.Reader) (admission.Interface, error) { return p.create(parts, config) })
		names = append(names, p.name)
	}
	initializers, err := parts.initializers()
	if err != nil {
		return nil, err
	}
	return made.NewFromPlugins(names, configs, initializers, admission.Decorators{
		admission.DecoratorFunc(sparingOwn), admission.DecoratorFunc(admissionmetrics.WithControllerMetrics),
	})
}
