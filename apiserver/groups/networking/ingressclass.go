package networking

import (
	"context"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// longestController is the length of a controller's name at most.
const longestController = 250

func ingressClasses() resource.Resource {
	return &resource.Kind[networkingv1.IngressClass]{
		GroupVersion:  version,
		Name:          "ingressclasses",
		Singular:      "ingressclass",
		ClusterScoped: true,
		List:          &networkingv1.IngressClassList{},
		Generation:    true,
		Default:       defaultIngressClass,
		Validate:      validateIngressClass,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Controller", "string", "The controller that serves ingresses of the class."),
			resource.Column("Parameters", "string", "The object that configures the controller."),
			resource.Age(),
		},
		Row: func(c *networkingv1.IngressClass, now time.Time) []any {
			name := c.Name
			if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
				name += " (default)"
			}
			return []any{name, c.Spec.Controller, formatParameters(c.Spec.Parameters),
				resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func formatParameters(p *networkingv1.IngressClassParametersReference) string {
	switch {
	case p == nil:
		return resource.None
	case p.APIGroup != nil:
		return p.Kind + "." + *p.APIGroup + "/" + p.Name
	}
	return p.Kind + "/" + p.Name
}

func defaultIngressClass(c *networkingv1.IngressClass) {
	if p := c.Spec.Parameters; p != nil && p.Scope == nil {
		p.Scope = ptr.To(networkingv1.IngressClassParametersReferenceScopeCluster)
	}
}

func validateIngressClass(_ context.Context, c, old *networkingv1.IngressClass) field.ErrorList {
	errs := validation.Meta(c, old, false, validation.SubdomainName)
	at := field.NewPath("spec")
	if old != nil {
		errs = append(errs, validation.Immutable(c.Spec.Controller, old.Spec.Controller, at.Child("controller"))...)
	}
	if len(c.Spec.Controller) > longestController {
		errs = append(errs, field.TooLong(at.Child("controller"), "", longestController))
	}
	errs = append(errs, utilvalidation.IsDomainPrefixedPath(at.Child("controller"), c.Spec.Controller)...)
	if c.Spec.Parameters != nil {
		errs = append(errs, validateParameters(c.Spec.Parameters, at.Child("parameters"))...)
	}
	return errs
}

func validateParameters(p *networkingv1.IngressClassParametersReference, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.APIGroup != nil {
		errs = append(errs, validation.Check(*p.APIGroup, at.Child("apiGroup"), utilvalidation.IsDNS1123Subdomain)...)
	}
	errs = append(errs, validation.PathSegment(p.Kind, at.Child("kind"))...)
	errs = append(errs, validation.PathSegment(p.Name, at.Child("name"))...)

	const cluster, namespace = networkingv1.IngressClassParametersReferenceScopeCluster,
		networkingv1.IngressClassParametersReferenceScopeNamespace
	switch scope := ptr.Deref(p.Scope, ""); {
	case p.Scope == nil:
		errs = append(errs, field.Required(at.Child("scope"), ""))
	case scope == namespace && p.Namespace == nil:
		errs = append(errs, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
	case scope == namespace:
		errs = append(errs, validation.Check(*p.Namespace, at.Child("namespace"), utilvalidation.IsDNS1123Label)...)
	case scope == cluster && p.Namespace != nil:
		errs = append(errs, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
	case scope != cluster:
		errs = append(errs, field.NotSupported(at.Child("scope"), scope, []string{cluster, namespace}))
	}
	return errs
}
