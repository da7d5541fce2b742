package subresources

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/refusals"
)

// Claims checks requirements of writes to claims for devices that are not in the object: a
// namespace that allows administrative access, and the right to write a part of the status.
type Claims struct {
	Authorizer authorizer.Authorizer
	// Namespace reads a namespace.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
}

// MayRequest checks the requests of a new claim, or of a new template of claims.
func (c *Claims) MayRequest(
	ctx context.Context, namespace string, requests []resourcev1.DeviceRequest,
) field.ErrorList {
	for i := range requests {
		if e := requests[i].Exactly; e != nil && ptr.Deref(e.AdminAccess, false) {
			// Clients expect this path, which is the one of versions without "exactly".
			return c.adminAccess(ctx, namespace,
				field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

func (c *Claims) adminAccess(ctx context.Context, namespace string, at *field.Path) field.ErrorList {
	ns, err := c.Namespace(ctx, namespace)
	if err != nil {
		return field.ErrorList{
			field.InternalError(at, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	if ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] != "true" {
		return field.ErrorList{
			field.Forbidden(at,
				fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace",
					resourcev1.DRAAdminNamespaceLabelKey))}
	}
	return nil
}

// MayWriteStatus checks a change of a status. Allocation and reservations need the right to bind
// claims, anywhere. Reports about devices need the right to report for their driver; one that holds
// for the own node is enough for a service account of a pod there.
func (c *Claims) MayWriteStatus(ctx context.Context, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	status, was := &claim.Status, &old.Status
	var errs field.ErrorList
	if at := grantedAdmin(status, field.NewPath("status", "allocation", "devices", "results")); at != nil &&
		grantedAdmin(was, at) == nil {
		errs = append(errs, c.adminAccess(ctx, claim.Namespace, at)...)
	}
	at := field.NewPath("status")
	attrs, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return append(errs, field.InternalError(at, fmt.Errorf("cannot build authorizer attributes: %w", err)))
	}
	if !apiequality.Semantic.DeepEqual(status.Allocation, was.Allocation) ||
		!apiequality.Semantic.DeepEqual(status.ReservedFor, was.ReservedFor) {
		if err := c.may(ctx,
			part{Attributes: attrs, verb: attrs.GetVerb(), subresource: resourcev1.SubresourceBinding}); err != nil {
			errs = append(errs,
				field.Forbidden(at.Child("allocation"),
					fmt.Sprintf(
						`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`, attrs.GetVerb(), err)))
		}
	}
	if status.Allocation == nil {
		return errs // reports of devices went with them
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + attrs.GetVerb()}
	if onNode(attrs.GetUser(), nodeOf(status.Allocation)) {
		verbs = []string{resourcev1.VerbPrefixAssociatedNode + attrs.GetVerb(), verbs[0]}
	}
	for _, driver := range changedDrivers(status.Devices, was.Devices) {
		if err := c.mayReport(ctx, attrs, verbs, driver); err != nil {
			errs = append(errs,
				field.Forbidden(at.Child("devices"),
					fmt.Sprintf(
						`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`,
						verbs, err)))
		}
	}
	return errs
}

// mayReport reports whether one of the verbs is allowed for a driver; the error is that of the
// first one.
func (c *Claims) mayReport(ctx context.Context, attrs authorizer.Attributes, verbs []string, driver string) error {
	var first error
	for ctx, verb := range refusals.Questions(ctx, verbs...) {
		err := c.may(ctx, part{attrs, verb, resourcev1.SubresourceDriver, attrs.GetNamespace(), driver})
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// grantedAdmin returns the field by which an allocation grants administrative access, or nil.
func grantedAdmin(s *resourcev1.ResourceClaimStatus, results *field.Path) *field.Path {
	if s.Allocation == nil {
		return nil
	}
	for i, r := range s.Allocation.Devices.Results {
		if ptr.Deref(r.AdminAccess, false) {
			return results.Index(i).Child("adminAccess")
		}
	}
	return nil
}

// changedDrivers returns the drivers of the devices whose reports differ.
func changedDrivers(devices, old []resourcev1.AllocatedDeviceStatus) []string {
	type id struct{ driver, pool, device, share string }
	of := func(d *resourcev1.AllocatedDeviceStatus) id {
		return id{d.Driver, d.Pool, d.Device, ptr.Deref(d.ShareID, "")}
	}
	was := map[id]*resourcev1.AllocatedDeviceStatus{}
	for i := range old {
		was[of(&old[i])] = &old[i]
	}
	changed := map[string]bool{}
	for i := range devices {
		d := &devices[i]
		before, ok := was[of(d)]
		delete(was, of(d))
		if !ok || !apiequality.Semantic.DeepEqual(before, d) {
			changed[d.Driver] = true
		}
	}
	for gone := range was {
		changed[gone.driver] = true
	}
	return slices.Sorted(maps.Keys(changed))
}

// nodeOf returns the only node that an allocation is for, or "".
func nodeOf(a *resourcev1.AllocationResult) string {
	if a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := &a.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return ""
	}
	f := &term.MatchFields[0]
	if f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

// onNode reports whether a user is a service account whose token is for a pod on the node.
func onNode(who user.Info, node string) bool {
	if _, _, err := serviceaccount.SplitUsername(who.GetName()); err != nil || node == "" {
		return false
	}
	of := who.GetExtra()[serviceaccount.NodeNameKey]
	return len(of) == 1 && of[0] == node && len(utilvalidation.IsDNS1123Subdomain(node)) == 0
}

// may returns nil when the request of the part is allowed.
func (c *Claims) may(ctx context.Context, p part) error {
	decision, reason, err := c.Authorizer.Authorize(ctx, &p)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return responsewriters.ForbiddenStatusError(&p, reason)
}

// part is a request as if it were one to a part of the status.
type part struct {
	authorizer.Attributes
	verb, subresource, namespace, name string
}

// GetVerb implements authorizer.Attributes.
func (p *part) GetVerb() string { return p.verb }

// GetSubresource implements authorizer.Attributes.
func (p *part) GetSubresource() string { return p.subresource }

// GetNamespace implements authorizer.Attributes.
func (p *part) GetNamespace() string { return p.namespace }

// GetName implements authorizer.Attributes.
func (p *part) GetName() string { return p.name }
