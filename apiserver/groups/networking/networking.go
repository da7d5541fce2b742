// Package networking declares the resources of the networking.k8s.io API group: ingresses and
// their classes, network policies, and the addresses of services.
//
// The objects are validated, stored and printed here. An ingress controller, or the network of a
// node, acts on them.
package networking

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/barque/barque/apiserver/resource"
)

var version = networkingv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		ingresses(),
		ingressClasses(),
		networkPolicies(),
		serviceCIDRs(),
		ipAddresses(),
	}
}
