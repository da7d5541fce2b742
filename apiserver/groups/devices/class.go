package devices

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func deviceClasses() resource.Resource {
	return &resource.Kind[resourcev1.DeviceClass]{
		GroupVersion:  version,
		Name:          "deviceclasses",
		Singular:      "deviceclass",
		ClusterScoped: true,
		List:          &resourcev1.DeviceClassList{},
		ReturnDeleted: true,
		Generation:    true,
		Validate:      validateClass,
		Columns:       []metav1.TableColumnDefinition{resource.Name(), resource.Age()},
		Row: func(c *resourcev1.DeviceClass, now time.Time) []any {
			return []any{c.Name, resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func validateClass(_ context.Context, c, old *resourcev1.DeviceClass) field.ErrorList {
	errs := validation.Meta(c, old, false, validation.SubdomainName)
	at := field.NewPath("spec")
	// A selector that was accepted once stays valid.
	sameSelectors := old != nil && apiequality.Semantic.DeepEqual(c.Spec.Selectors, old.Spec.Selectors)
	sameConfig := old != nil && apiequality.Semantic.DeepEqual(c.Spec.Config, old.Spec.Config)
	errs = append(errs, validateSelectors(c.Spec.Selectors, sameSelectors, at.Child("selectors"))...)
	errs = append(errs,
		each(c.Spec.Config, resourcev1.DeviceConfigMaxSize, at.Child("config"),
			func(cfg *resourcev1.DeviceClassConfiguration, at *field.Path) field.ErrorList {
				return validateConfiguration(&cfg.DeviceConfiguration, sameConfig, at)
			})...)
	if name := c.Spec.ExtendedResourceName; name != nil && !validation.IsExtendedResource(corev1.ResourceName(*name)) {
		errs = append(errs,
			field.Invalid(at.Child("extendedResourceName"), *name, "must be a valid extended resource name"))
	}
	return errs
}
