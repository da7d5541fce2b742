package networking

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/barque/barque/apiserver/groups/validation"
)

func validateIngress(_ context.Context, i, old *networkingv1.Ingress) field.ErrorList {
	errs := validation.Meta(i, old, true, validation.SubdomainName)
	errs = append(errs, validateIngressSpec(&i.Spec, field.NewPath("spec"))...)
	class, named := i.Annotations[classAnnotation]
	if old == nil && named && i.Spec.IngressClassName != nil && class != *i.Spec.IngressClassName {
		errs = append(errs, field.Invalid(field.NewPath("annotations").Child(classAnnotation), class,
			"must match `ingressClassName` when both are specified"))
	}
	return errs
}

func validateIngressSpec(spec *networkingv1.IngressSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(at, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, at.Child("defaultBackend"))...)
	}
	for i := range spec.Rules {
		errs = append(errs, validateRule(&spec.Rules[i], at.Child("rules").Index(i))...)
	}
	for i := range spec.TLS {
		errs = append(errs, validateTLS(&spec.TLS[i], at.Child("tls").Index(i))...)
	}
	if class := spec.IngressClassName; class != nil {
		errs = append(errs,
			validation.Check(*class, at.Child("ingressClassName"), utilvalidation.IsDNS1123Subdomain)...)
	}
	return errs
}

func validateTLS(tls *networkingv1.IngressTLS, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, host := range tls.Hosts {
		errs = append(errs, validateHost(host, at.Child("hosts").Index(i))...)
	}
	if tls.SecretName != "" {
		errs = append(errs,
			validation.Check(tls.SecretName, at.Child("secretName"), utilvalidation.IsDNS1123Subdomain)...)
	}
	return errs
}

// validateHost checks a DNS name whose first label may be a wildcard.
func validateHost(host string, at *field.Path) field.ErrorList {
	if strings.Contains(host, "*") {
		return validation.Check(host, at, utilvalidation.IsWildcardDNS1123Subdomain)
	}
	return validation.Check(host, at, utilvalidation.IsDNS1123Subdomain)
}

func notAnIP(name string, at *field.Path) field.ErrorList {
	if netutils.ParseIPSloppy(name) != nil {
		return field.ErrorList{field.Invalid(at, name, "must be a DNS name, not an IP address")}
	}
	return nil
}

func validateRule(rule *networkingv1.IngressRule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if rule.Host != "" {
		errs = append(errs, notAnIP(rule.Host, at.Child("host"))...)
		errs = append(errs, validateHost(rule.Host, at.Child("host"))...)
	}
	if rule.HTTP == nil {
		return errs
	}
	at = at.Child("http", "paths")
	if len(rule.HTTP.Paths) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	for i := range rule.HTTP.Paths {
		errs = append(errs, validatePath(&rule.HTTP.Paths[i], at.Index(i))...)
	}
	return errs
}

func validatePath(path *networkingv1.HTTPIngressPath, at *field.Path) field.ErrorList {
	if path.PathType == nil {
		return field.ErrorList{field.Required(at.Child("pathType"), "pathType must be specified")}
	}
	var errs field.ErrorList
	absolute := strings.HasPrefix(path.Path, "/")
	switch *path.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !absolute {
			errs = append(errs, field.Invalid(at.Child("path"), path.Path, "must be an absolute path"))
		}
		errs = append(errs, validateCleanPath(path.Path, at.Child("path"))...)
	case networkingv1.PathTypeImplementationSpecific:
		if path.Path != "" && !absolute {
			errs = append(errs, field.Invalid(at.Child("path"), path.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("pathType"), *path.PathType, []networkingv1.PathType{
			networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix}))
	}
	return append(errs, validateBackend(&path.Backend, at.Child("backend"))...)
}

// validateCleanPath refuses paths that a proxy may normalize to another one.
func validateCleanPath(path string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, part := range []string{"//", "/./", "/../", "%2f", "%2F"} {
		if strings.Contains(path, part) {
			errs = append(errs, field.Invalid(at, path, fmt.Sprintf("must not contain '%s'", part)))
		}
	}
	for _, end := range []string{"/..", "/."} {
		if strings.HasSuffix(path, end) {
			errs = append(errs, field.Invalid(at, path, fmt.Sprintf("cannot end with '%s'", end)))
		}
	}
	return errs
}

func validateBackend(b *networkingv1.IngressBackend, at *field.Path) field.ErrorList {
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(at, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return validateResourceBackend(b.Resource, at.Child("resource"))
	case b.Service != nil:
		return validateServiceBackend(b.Service, at)
	}
	return field.ErrorList{field.Invalid(at, "", "resource or service backend is required")}
}

func validateResourceBackend(ref *corev1.TypedLocalObjectReference, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.APIGroup != nil {
		errs = append(errs, validation.Check(*ref.APIGroup, at.Child("apiGroup"), utilvalidation.IsDNS1123Subdomain)...)
	}
	errs = append(errs, validation.PathSegment(ref.Kind, at.Child("kind"))...)
	return append(errs, validation.PathSegment(ref.Name, at.Child("name"))...)
}

func validateServiceBackend(s *networkingv1.IngressServiceBackend, at *field.Path) field.ErrorList {
	errs := validation.DNSLabel(s.Name, at.Child("service", "name"))
	port := at.Child("service", "port")
	switch named, numbered := s.Port.Name != "", s.Port.Number != 0; {
	case named && numbered:
		errs = append(errs, field.Invalid(at, "", "cannot set both port name & port number"))
	case named:
		errs = append(errs, validation.Check(s.Port.Name, port.Child("name"), utilvalidation.IsValidPortName)...)
	case numbered:
		errs = append(errs, validation.Port(s.Port.Number, port.Child("number"))...)
	default:
		errs = append(errs, field.Required(at, "port name or number is required"))
	}
	return errs
}
