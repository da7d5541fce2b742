package apiservices

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// Availability decides which findings about extension API servers are written. Every server probes
// them, and shows its findings among its metrics. Each would also write them into the status of the
// APIService, over the findings of the others, and again whenever the text differs: for ever, in a
// cluster that is idle. So only the leader writes, and no other text for the same finding.
//
// A finding that is not written is taken back before the comparison with the stored object: such an
// update changes nothing and gets no revision.
type Availability struct {
	*admission.Handler
	leads func() bool
}

var _ admission.MutationInterface = (*Availability)(nil)

// NewAvailability returns the plugin. leads reports whether this server leads.
func NewAvailability(leads func() bool) *Availability {
	return &Availability{admission.NewHandler(admission.Update), leads}
}

// Admit implements admission.MutationInterface.
func (v *Availability) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != apiregistration.Resource("apiservices") || a.GetSubresource() != "status" ||
		a.GetUserInfo() == nil || a.GetUserInfo().GetName() != user.APIServerUser {
		return nil
	}
	is, ok := a.GetObject().(*apiregistration.APIService)
	was, ok2 := a.GetOldObject().(*apiregistration.APIService)
	if !ok || !ok2 {
		return admission.NewForbidden(a,
			fmt.Errorf("expected APIServices, got %T and %T", a.GetObject(), a.GetOldObject()))
	}
	// A group of the server itself gets the same text from every server.
	if was.Spec.Service != nil && (!v.leads() || sameFinding(is, was)) {
		stored := was.DeepCopy()
		is.Status, is.ManagedFields = stored.Status, stored.ManagedFields
	}
	return nil
}

func sameFinding(is, was *apiregistration.APIService) bool {
	return slices.EqualFunc(is.Status.Conditions, was.Status.Conditions,
		func(a, b apiregistration.APIServiceCondition) bool {
			return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
		})
}
