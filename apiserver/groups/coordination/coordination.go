// Package coordination declares the resources of the coordination.k8s.io API group: the leases by
// which clients elect leaders among themselves. Barque's own servers need none.
package coordination

import (
	"context"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Resources declares the group's resources.
func Resources() []resource.Resource { return []resource.Resource{leases()} }

func leases() resource.Resource {
	return &resource.Kind[coordinationv1.Lease]{
		GroupVersion:   coordinationv1.SchemeGroupVersion,
		Name:           "leases",
		Singular:       "lease",
		List:           &coordinationv1.LeaseList{},
		Prepare:        prepareLease,
		Validate:       validateLease,
		CreateOnUpdate: true,
		// An update without resourceVersion could take a lease from its holder.
		VersionedUpdate: true,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Holder", "string", "Who holds the lease."),
			resource.Age(),
		},
		Row: func(l *coordinationv1.Lease, now time.Time) []any {
			return []any{l.Name, ptr.Deref(l.Spec.HolderIdentity, ""), resource.Since(l.CreationTimestamp, now)}
		},
	}
}

// prepareLease drops the fields of coordinated elections, an alpha feature, which is off.
func prepareLease(_ context.Context, l, old *coordinationv1.Lease) {
	if old == nil || old.Spec.Strategy == nil {
		l.Spec.Strategy = nil
	}
	if old == nil || old.Spec.PreferredHolder == nil {
		l.Spec.PreferredHolder = nil
	}
}

func validateLease(_ context.Context, l, old *coordinationv1.Lease) field.ErrorList {
	errs := validation.Meta(l, old, true, validation.SubdomainName)
	at := field.NewPath("spec")
	if d := l.Spec.LeaseDurationSeconds; d != nil {
		errs = append(errs, validation.Positive(*d, at.Child("leaseDurationSeconds"))...)
	}
	errs = append(errs, validation.OptionalNonNegative(l.Spec.LeaseTransitions, at.Child("leaseTransitions"))...)
	if ptr.Deref(l.Spec.PreferredHolder, "") != "" && ptr.Deref(l.Spec.Strategy, "") == "" {
		errs = append(errs,
			field.Forbidden(at.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	if s := l.Spec.Strategy; s != nil && strings.Contains(string(*s), "/") {
		errs = append(errs,
			validation.Check(string(*s), at.Child("strategy", "strategy"), utilvalidation.IsQualifiedName)...)
	} else {
		errs = append(errs,
			validation.OptionalOneOf(s, at.Child("strategy", "strategy"), coordinationv1.OldestEmulationVersion)...)
	}
	return errs
}
