package networking

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// classAnnotation named the class of an ingress before spec.ingressClassName did.
const classAnnotation = "kubernetes.io/ingress.class"

func ingresses() resource.Resource {
	return &resource.Kind[networkingv1.Ingress]{
		GroupVersion: version,
		Name:         "ingresses",
		Singular:     "ingress",
		ShortNames:   []string{"ing"},
		List:         &networkingv1.IngressList{},
		Validate:     validateIngress,
		Warnings:     ingressWarnings,
		Generation:   true,
		Status: &resource.Status[networkingv1.Ingress]{
			Validate: validateIngressStatus,
			Warnings: ingressStatusWarnings,
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Class", "string", "The class whose controller serves the ingress."),
			resource.Column("Hosts", "string", "The host names that have a rule."),
			resource.Column("Address", "string", "Addresses at which the ingress is served."),
			resource.Column("Ports", "string", "Ports at which the ingress is served."),
			resource.Age(),
		},
		Row: func(i *networkingv1.Ingress, now time.Time) []any {
			return []any{
				i.Name,
				ptr.Deref(i.Spec.IngressClassName, resource.None),
				formatHosts(i.Spec.Rules),
				formatAddresses(i.Status.LoadBalancer.Ingress),
				formatPorts(i.Spec.TLS),
				resource.Since(i.CreationTimestamp, now),
			}
		},
	}
}

func formatHosts(rules []networkingv1.IngressRule) string {
	const most = 3
	var hosts []string
	read := 0
	for ; read < len(rules) && len(hosts) < most; read++ {
		if rules[read].Host != "" {
			hosts = append(hosts, rules[read].Host)
		}
	}
	switch {
	case len(hosts) == 0:
		return "*"
	case read < len(rules):
		return fmt.Sprintf("%s + %d more...", strings.Join(hosts, ","), len(rules)-most)
	}
	return strings.Join(hosts, ",")
}

func formatAddresses(ingress []networkingv1.IngressLoadBalancerIngress) string {
	var all []string
	for _, i := range ingress {
		if address := cmp.Or(i.IP, i.Hostname); address != "" {
			all = append(all, address)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

func formatPorts(tls []networkingv1.IngressTLS) string {
	if len(tls) > 0 {
		return "80, 443"
	}
	return "80"
}

func ingressWarnings(_ context.Context, i, old *networkingv1.Ingress) []string {
	if _, named := i.Annotations[classAnnotation]; old == nil && named && i.Spec.IngressClassName == nil {
		return []string{
			fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classAnnotation)}
	}
	return nil
}

func ingressStatusWarnings(_ context.Context, i, _ *networkingv1.Ingress) []string {
	var warnings []string
	at := field.NewPath("status", "loadBalancer", "ingress")
	for n, ingress := range i.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(at.Index(n), ingress.IP)...)
		}
	}
	return warnings
}

func validateIngressStatus(_ context.Context, i, _ *networkingv1.Ingress) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("status", "loadBalancer", "ingress")
	for n, ingress := range i.Status.LoadBalancer.Ingress {
		at := at.Index(n)
		if ingress.IP != "" {
			errs = append(errs, validation.IP(ingress.IP, at.Child("ip"))...)
		}
		if ingress.Hostname != "" {
			errs = append(errs, validation.DNSSubdomain(ingress.Hostname, at.Child("hostname"))...)
			errs = append(errs, notAnIP(ingress.Hostname, at.Child("hostname"))...)
		}
	}
	return errs
}
