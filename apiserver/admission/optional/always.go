package optional

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/admission"
)

// AlwaysAdmit admits everything, as does a chain without it.
type AlwaysAdmit struct{}

// AlwaysDeny denies everything.
type AlwaysDeny struct{}

var (
	_ admission.ValidationInterface = AlwaysAdmit{}
	_ admission.MutationInterface   = AlwaysDeny{}
	_ admission.ValidationInterface = AlwaysDeny{}
)

// Handles implements admission.Interface.
func (AlwaysAdmit) Handles(admission.Operation) bool { return true }

// Validate implements admission.ValidationInterface.
func (AlwaysAdmit) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// Handles implements admission.Interface.
func (AlwaysDeny) Handles(admission.Operation) bool { return true }

// Admit implements admission.MutationInterface.
func (d AlwaysDeny) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return d.Validate(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (AlwaysDeny) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return admission.NewForbidden(a, errors.New("admission control is denying all modifications"))
}
