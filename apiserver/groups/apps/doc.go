// Package apps declares the resources of the apps API group (apps/v1): workloads that keep pods
// running, and the revisions of their templates.
//
// It owns their defaults, validation and printing. Their controllers own their behaviour.
package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

var version = appsv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		deployments(),
		replicaSets(),
		statefulSets(),
		daemonSets(),
		controllerRevisions(),
	}
}

// templateWarnings are the warnings of a workload whose pods are named after it. An update without
// a change of the spec is not warned of.
func templateWarnings[T any, P validation.Object[T]](obj, old P, t *corev1.PodTemplateSpec) []string {
	switch {
	case old == nil:
		return warn.Template(obj.GetName(), t, "spec", "template")
	case obj.GetGeneration() != old.GetGeneration():
		return warn.Template("", t, "spec", "template")
	}
	return nil
}

// selectorString is a label selector as the scale subresource shows it.
func selectorString(s *metav1.LabelSelector) (string, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}
