package optional

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// ExternalIPs lets no service take the traffic of addresses that it did not have already.
type ExternalIPs struct{ *admission.Handler }

var _ admission.ValidationInterface = (*ExternalIPs)(nil)

// NewExternalIPs returns the step.
func NewExternalIPs() *ExternalIPs {
	return &ExternalIPs{admission.NewHandler(admission.Create, admission.Update)}
}

// Validate implements admission.ValidationInterface.
func (*ExternalIPs) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	service, ok := a.GetObject().(*corev1.Service)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	var had []string
	if old, ok := a.GetOldObject().(*corev1.Service); ok {
		had = old.Spec.ExternalIPs
	}
	if slices.ContainsFunc(service.Spec.ExternalIPs, func(ip string) bool { return !slices.Contains(had, ip) }) {
		//lint:ignore ST1005 upstream's wording
		return admission.NewForbidden(a, fmt.Errorf("Use of external IPs is denied by admission control"))
	}
	return nil
}
