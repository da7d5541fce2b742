package apiserver

import (
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/barque/barque/apiserver/groups"
	"github.com/barque/barque/apiserver/resource"
)

// DefaultResources are all kinds that Barque serves. The first version of a group is its
// preferred one.
func DefaultResources() []resource.Resource { return groups.Resources() }

// Versions returns the API versions that Barque serves of itself.
func Versions() []schema.GroupVersion {
	out := []schema.GroupVersion{
		apiextensionsv1.SchemeGroupVersion, apiregistrationv1.SchemeGroupVersion, // of libraries
		authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion, // reviews, which store nothing
		autoscalingv1.SchemeGroupVersion, eventsv1.SchemeGroupVersion, // other forms of stored kinds
		metricsVersion,
	}
	for _, r := range DefaultResources() {
		if gv := r.GroupVersionResource().GroupVersion(); !slices.Contains(out, gv) {
			out = append(out, gv)
		}
	}
	return out
}
