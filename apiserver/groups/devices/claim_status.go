package devices

import (
	"context"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

// deviceID names a device, or the share of one, in messages and comparisons.
func deviceID[S ~string](driver, pool, device string, share *S) string {
	id := driver + "/" + pool + "/" + device
	if s := ptr.Deref(share, ""); s != "" {
		id += "/" + string(s)
	}
	return id
}

func statusID(d *resourcev1.AllocatedDeviceStatus) string {
	return deviceID(d.Driver, d.Pool, d.Device, d.ShareID)
}

// allocated are the devices that a claim has.
func allocated(s *resourcev1.ResourceClaimStatus) map[string]bool {
	ids := map[string]bool{}
	if s.Allocation != nil {
		for _, r := range s.Allocation.Devices.Results {
			ids[deviceID(r.Driver, r.Pool, r.Device, r.ShareID)] = true
		}
	}
	return ids
}

// prepareClaimStatus drops fields of features that are off by default, and reports about devices
// that the claim has no longer: a client that removes a device need not know of its reports.
func prepareClaimStatus(_ context.Context, c, old *resourcev1.ResourceClaim) {
	metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
	if a := c.Status.Allocation; a != nil {
		for i := range a.Devices.Results {
			a.Devices.Results[i].SkipNodeOperations = nil
		}
	}
	had, has := allocated(&old.Status), allocated(&c.Status)
	c.Status.Devices = slices.DeleteFunc(c.Status.Devices, func(d resourcev1.AllocatedDeviceStatus) bool {
		id := statusID(&d)
		return had[id] && !has[id]
	})
	if len(c.Status.Devices) == 0 {
		c.Status.Devices = nil
	}
}

func validateClaimStatus(_ context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
	errs := validation.Meta(c, old, true, validation.SubdomainName)
	s, was, at := &c.Status, &old.Status, field.NewPath("status")
	errs = append(errs, eachOf(s.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, at.Child("reservedFor"),
		func(r *resourcev1.ResourceClaimConsumerReference) string { return string(r.UID) }, validateConsumer)...)
	has := allocated(s)
	errs = append(errs,
		eachOf(s.Devices, unbounded, at.Child("devices"), statusID,
			func(d *resourcev1.AllocatedDeviceStatus, at *field.Path) field.ErrorList {
				return validateDeviceStatus(d, has, at)
			})...)
	errs = append(errs, validateReservation(c, old, at.Child("reservedFor"))...)
	at = at.Child("allocation")
	switch {
	case s.Allocation == nil:
	case was.Allocation != nil:
		errs = append(errs, validation.Immutable(s.Allocation, was.Allocation, at)...)
	default:
		errs = append(errs, validateAllocation(s.Allocation, requestsOf(&c.Spec.Devices), at)...)
	}
	return errs
}

// validateReservation checks that only claims with devices are reserved, and that those that are
// being deleted get no new reservation.
func validateReservation(c, old *resourcev1.ResourceClaim, at *field.Path) field.ErrorList {
	if len(c.Status.ReservedFor) == 0 {
		return nil
	}
	if c.Status.Allocation == nil {
		return field.ErrorList{field.Forbidden(at, "may not be specified when `allocated` is not set")}
	}
	added := slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return !slices.Contains(old.Status.ReservedFor, r)
	})
	if c.DeletionTimestamp != nil && added {
		return field.ErrorList{
			field.Forbidden(at,
				"new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")}
	}
	return nil
}

func validateConsumer(r *resourcev1.ResourceClaimConsumerReference, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, part := range []struct{ name, value string }{{"resource", r.Resource}, {"name", r.Name},
		{"uid", string(r.UID)}} {
		if part.value == "" {
			errs = append(errs, field.Required(at.Child(part.name), ""))
		}
	}
	return errs
}

func validateAllocation(a *resourcev1.AllocationResult, names requests, at *field.Path) field.ErrorList {
	const largestConfig = 2 * resourcev1.DeviceConfigMaxSize // of the class and of the claim
	devices := at.Child("devices")
	errs := each(a.Devices.Results, resourcev1.AllocationResultsMaxSize, devices.Child("results"),
		func(r *resourcev1.DeviceRequestAllocationResult, at *field.Path) field.ErrorList {
			return validateResult(r, names, at)
		})
	errs = append(errs,
		each(a.Devices.Config, largestConfig, devices.Child("config"),
			func(c *resourcev1.DeviceAllocationConfiguration, at *field.Path) field.ErrorList {
				errs := validation.Enum(c.Source, at.Child("source"), resourcev1.AllocationConfigSourceClaim,
					resourcev1.AllocationConfigSourceClass)
				errs = append(errs, names.references(c.Requests, at)...)
				return append(errs, validateConfiguration(&c.DeviceConfiguration, false, at)...)
			})...)
	if a.NodeSelector != nil {
		errs = append(errs, podtemplate.ValidateNodeSelector(a.NodeSelector, at.Child("nodeSelector"))...)
	}
	return errs
}

func validateResult(r *resourcev1.DeviceRequestAllocationResult, names requests, at *field.Path) field.ErrorList {
	errs := names.reference(&r.Request, at.Child("request"))
	errs = append(errs, driverName(r.Driver, at.Child("driver"))...)
	errs = append(errs, poolName(r.Pool, at.Child("pool"))...)
	errs = append(errs, label(r.Device, at.Child("device"))...)
	errs = append(errs, validateBinding(r.BindingConditions, r.BindingFailureConditions, at)...)
	errs = append(errs, each(r.Tolerations, unbounded, at.Child("tolerations"), validateToleration)...)
	return append(errs, validateUID(r.ShareID, at.Child("shareID"))...)
}

// validateBinding checks the conditions that a device is bound under, and those that end the wait
// for them: there are both or none.
func validateBinding(conditions, failures []string, at *field.Path) field.ErrorList {
	bind, fail := at.Child("bindingConditions"), at.Child("bindingFailureConditions")
	errs := each(conditions, resourcev1.BindingConditionsMaxSize, bind, labelName)
	errs = append(errs, each(failures, resourcev1.BindingFailureConditionsMaxSize, fail, labelName)...)
	for i, c := range conditions {
		if slices.Contains(conditions[:i], c) {
			errs = append(errs, field.Duplicate(bind.Index(i), c))
		}
	}
	for i, c := range failures {
		if slices.Contains(failures[:i], c) {
			errs = append(errs, field.Duplicate(fail.Index(i), c))
		}
		if slices.Contains(conditions, c) {
			errs = append(errs,
				field.Invalid(fail.Index(i), c, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	if len(conditions) == 0 && len(failures) > 0 {
		errs = append(errs,
			field.Invalid(bind, conditions, "bindingConditions are required to use bindingFailureConditions"))
	}
	if len(failures) == 0 && len(conditions) > 0 {
		errs = append(errs,
			field.Invalid(fail, failures, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}

// validateUID checks the optional identity of a share.
func validateUID[T ~string](uid *T, at *field.Path) field.ErrorList {
	return validate.UUID(context.Background(), operation.Operation{}, at, uid, nil)
}

// validateDeviceStatus checks a driver's report about a device that the claim has.
func validateDeviceStatus(d *resourcev1.AllocatedDeviceStatus, has map[string]bool, at *field.Path) field.ErrorList {
	errs := driverName(d.Driver, at.Child("driver"))
	errs = append(errs, poolName(d.Pool, at.Child("pool"))...)
	errs = append(errs, label(d.Device, at.Child("device"))...)
	errs = append(errs, validateUID(d.ShareID, at.Child("shareID"))...)
	if !has[statusID(d)] {
		errs = append(errs, field.Invalid(at, statusID(d), "must be an allocated device in the claim"))
	}
	conditions := at.Child("conditions")
	if n := len(d.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		errs = append(errs, field.TooMany(conditions, n, resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	errs = append(errs, metav1validation.ValidateConditions(d.Conditions, conditions)...)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		errs = append(errs, validateRaw(*d.Data, resourcev1.AllocatedDeviceStatusDataMaxLength, at.Child("data"))...)
	}
	n := d.NetworkData
	if n == nil {
		return errs
	}
	at = at.Child("networkData")
	if len(n.InterfaceName) > resourcev1.NetworkDeviceDataInterfaceNameMaxLength {
		errs = append(errs,
			field.TooLong(at.Child("interfaceName"), "", resourcev1.NetworkDeviceDataInterfaceNameMaxLength))
	}
	if len(n.HardwareAddress) > resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
		errs = append(errs,
			field.TooLong(at.Child("hardwareAddress"), "", resourcev1.NetworkDeviceDataHardwareAddressMaxLength))
	}
	return append(errs,
		eachOf(n.IPs, resourcev1.NetworkDeviceDataMaxIPs, at.Child("ips"), self,
			func(ip *string, at *field.Path) field.ErrorList {
				return utilvalidation.IsValidInterfaceAddress(at, *ip)
			})...)
}
