package admission

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
)

// IngressWarnings warns the writers of Ingresses about annotations without effect. It refuses
// nothing: a chart of another cluster must go in, and the Ingress may be for another controller
// tomorrow.
type IngressWarnings struct {
	*admission.Handler
	problems func(*networkingv1.Ingress) []string
}

var _ admission.ValidationInterface = (*IngressWarnings)(nil)

// NewIngressWarnings returns the step. problems returns the texts for an Ingress; nil is none.
func NewIngressWarnings(problems func(*networkingv1.Ingress) []string) *IngressWarnings {
	return &IngressWarnings{admission.NewHandler(admission.Create, admission.Update), problems}
}

// Validate implements admission.ValidationInterface.
func (i *IngressWarnings) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	in, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok || a.GetSubresource() != "" || i.problems == nil || in.DeletionTimestamp != nil {
		return nil
	}
	for _, text := range i.problems(in) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}
