// Package apps declares the resources of the apps API group (apps/v1): workloads that keep pods
// running.
//
// It owns their defaults, validation and printing. What they do is their controllers' business:
// a kind is declared here when its controller exists.
package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/resource"
)

var version = appsv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		deployments(),
		replicaSets(),
	}
}

// selectorString is a label selector as the scale subresource shows it.
func selectorString(s *metav1.LabelSelector) (string, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}
