// Package callouts finds the objects for which the API server has to call another program, and
// cannot: webhooks of admission, webhooks that convert custom resources, and extension API servers.
// Requests that need such a call fail, although the server and its store are well.
//
// A call is judged by the endpoints of its Service, as the server itself resolves them. A webhook
// at a URL is not judged: only the requests show whether it answers.
package callouts

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
)

// Lister lists objects from an informer.
type Lister[T any] interface {
	List(labels.Selector) ([]T, error)
}

// Sources are the objects with calls, and the way to a Service. A nil lister has no objects.
type Sources struct {
	Validating  Lister[*admissionv1.ValidatingWebhookConfiguration]
	Mutating    Lister[*admissionv1.MutatingWebhookConfiguration]
	Definitions Lister[*apiextensionsv1.CustomResourceDefinition]
	APIServices Lister[*apiregistrationv1.APIService]
	// Resolve returns where the server reaches a Service.
	Resolve func(namespace, name string, port int32) (*url.URL, error)
}

// Failing is an object with calls that fail.
type Failing struct {
	Kind, Name string
	// Webhooks are the webhooks of a configuration of admission, by name.
	Webhooks []string
	// Service is NAMESPACE/NAME of the Service to call.
	Service string
	// Why is the reason of the failure.
	Why string
}

// defaultPort is the port of a Service for which none is named.
const defaultPort = 443

// Find returns the failing calls, ordered by kind and name.
func (s *Sources) Find() ([]Failing, error) {
	var found []Failing
	for _, find := range []func() ([]Failing, error){s.validating, s.mutating, s.definitions, s.apiServices} {
		some, err := find()
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	slices.SortStableFunc(found,
		func(a, b Failing) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return found, nil
}

// hook is a webhook of admission.
type hook struct {
	name    string
	failure *admissionv1.FailurePolicyType
	service *admissionv1.ServiceReference
}

func (s *Sources) validating() ([]Failing, error) {
	return each(s.Validating, func(c *admissionv1.ValidatingWebhookConfiguration) []Failing {
		var hooks []hook
		for _, w := range c.Webhooks {
			hooks = append(hooks, hook{w.Name, w.FailurePolicy, w.ClientConfig.Service})
		}
		return s.refusing("ValidatingWebhookConfiguration", c.Name, hooks)
	})
}

func (s *Sources) mutating() ([]Failing, error) {
	return each(s.Mutating, func(c *admissionv1.MutatingWebhookConfiguration) []Failing {
		var hooks []hook
		for _, w := range c.Webhooks {
			hooks = append(hooks, hook{w.Name, w.FailurePolicy, w.ClientConfig.Service})
		}
		return s.refusing("MutatingWebhookConfiguration", c.Name, hooks)
	})
}

// refusing returns the webhooks of a configuration that refuse requests because they cannot be
// called, one entry for each Service.
func (s *Sources) refusing(kind, name string, hooks []hook) (found []Failing) {
	for _, h := range hooks {
		if ptr.Deref(h.failure, admissionv1.Fail) != admissionv1.Fail || h.service == nil {
			continue
		}
		service, why := s.call(h.service.Namespace, h.service.Name, h.service.Port)
		if why == "" {
			continue
		}
		if i := slices.IndexFunc(found, func(f Failing) bool { return f.Service == service && f.Why == why }); i >= 0 {
			found[i].Webhooks = append(found[i].Webhooks, h.name)
			continue
		}
		found = append(found, Failing{Kind: kind, Name: name, Webhooks: []string{h.name}, Service: service, Why: why})
	}
	return found
}

// definitions returns the kinds whose objects cannot be converted between their versions.
func (s *Sources) definitions() ([]Failing, error) {
	return each(s.Definitions, func(d *apiextensionsv1.CustomResourceDefinition) []Failing {
		c := d.Spec.Conversion
		if len(d.Spec.Versions) < 2 || c == nil || c.Strategy != apiextensionsv1.WebhookConverter || c.Webhook == nil ||
			c.Webhook.ClientConfig == nil || c.Webhook.ClientConfig.Service == nil {
			return nil
		}
		to := c.Webhook.ClientConfig.Service
		service, why := s.call(to.Namespace, to.Name, to.Port)
		if why == "" {
			return nil
		}
		return []Failing{{Kind: "CustomResourceDefinition", Name: d.Name, Service: service, Why: why}}
	})
}

// apiServices returns the versions of groups whose extension API server was found unavailable. The
// leader probes each one.
func (s *Sources) apiServices() ([]Failing, error) {
	return each(s.APIServices, func(a *apiregistrationv1.APIService) []Failing {
		if a.Spec.Service == nil {
			return nil
		}
		i := slices.IndexFunc(a.Status.Conditions,
			func(c apiregistrationv1.APIServiceCondition) bool { return c.Type == apiregistrationv1.Available })
		if i < 0 || a.Status.Conditions[i].Status != apiregistrationv1.ConditionFalse {
			return nil
		}
		return []Failing{
			{Kind: "APIService", Name: a.Name, Service: a.Spec.Service.Namespace + "/" + a.Spec.Service.Name,
				Why: a.Status.Conditions[i].Message}}
	})
}

// call returns the name of a Service, and why the server cannot call it; "" if it can.
func (s *Sources) call(namespace, name string, port *int32) (service, why string) {
	service = namespace + "/" + name
	if _, err := s.Resolve(namespace, name, ptr.Deref(port, defaultPort)); err != nil {
		return service, err.Error()
	}
	return service, ""
}

func each[T any](l Lister[T], judge func(T) []Failing) (found []Failing, err error) {
	if l == nil {
		return nil, nil
	}
	all, err := l.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list the objects with calls: %w", err)
	}
	for _, object := range all {
		found = append(found, judge(object)...)
	}
	return found, nil
}
