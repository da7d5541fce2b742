// Package node declares the resources of the node.k8s.io API group: the classes that name how a
// node runs the containers of a pod.
package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Resources declares the group's resources.
func Resources() []resource.Resource { return []resource.Resource{runtimeClasses()} }

func runtimeClasses() resource.Resource {
	return &resource.Kind[nodev1.RuntimeClass]{
		GroupVersion:    nodev1.SchemeGroupVersion,
		Name:            "runtimeclasses",
		Singular:        "runtimeclass",
		ClusterScoped:   true,
		List:            &nodev1.RuntimeClassList{},
		CreateOnUpdate:  true,
		VersionedUpdate: true,
		Validate:        validateRuntimeClass,
		Warnings: func(_ context.Context, c, _ *nodev1.RuntimeClass) []string {
			if c.Scheduling == nil {
				return nil
			}
			return validation.NodeSelectorWarnings(c.Scheduling.NodeSelector,
				field.NewPath("scheduling", "nodeSelector"))
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Handler", "string", "The handler of the class in the runtimes of nodes."),
			resource.Age(),
		},
		Row: func(c *nodev1.RuntimeClass, now time.Time) []any {
			return []any{c.Name, c.Handler, resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func validateRuntimeClass(_ context.Context, c, old *nodev1.RuntimeClass) field.ErrorList {
	errs := validation.Meta(c, old, false, validation.SubdomainName)
	errs = append(errs, validation.DNSLabel(c.Handler, field.NewPath("handler"))...)
	if old != nil {
		errs = append(errs, validation.Immutable(c.Handler, old.Handler, field.NewPath("handler"))...)
	}
	if c.Overhead != nil {
		overhead := &corev1.ResourceRequirements{Limits: c.Overhead.PodFixed}
		errs = append(errs, validation.ResourceRequirements(overhead, nil, field.NewPath("overhead"))...)
	}
	if s := c.Scheduling; s != nil {
		at := field.NewPath("scheduling")
		errs = append(errs, validation.Labels(s.NodeSelector, at.Child("nodeSelector"))...)
		errs = append(errs, podtemplate.ValidateTolerations(s.Tolerations, at.Child("tolerations"))...)
		errs = append(errs, repeatedTolerations(s.Tolerations, at.Child("tolerations"))...)
	}
	return errs
}

// repeatedTolerations reports tolerations of the same taints. How long they last does not matter.
func repeatedTolerations(tolerations []corev1.Toleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.Toleration]bool{}
	for i, t := range tolerations {
		t.TolerationSeconds = nil
		if seen[t] {
			errs = append(errs, field.Duplicate(at.Index(i), tolerations[i]))
		}
		seen[t] = true
	}
	return errs
}
