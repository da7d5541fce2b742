// Package admissionregistration declares the resources of the admissionregistration.k8s.io API
// group: the configurations of admission webhooks, and admission policies with their bindings.
//
// CEL expressions are compiled when an object is written, so that a wrong one is refused with its
// place. An expression that an update does not change may use features of a later version.
//
// The user that names the parameters of a policy must be allowed to read them. A server provides
// the authorizer, see [AuthorizeParams].
package admissionregistration

import "github.com/barque/barque/apiserver/resource"

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		validatingWebhookConfigurations(), mutatingWebhookConfigurations(),
		validatingPolicies(), validatingBindings(), mutatingPolicies(), mutatingBindings(),
	}
}

// categories of all of them.
var categories = []string{"api-extensions"}
