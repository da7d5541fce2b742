package devices

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

const notARequest = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"

// requests are the names of a claim's requests, each with those of its subrequests.
type requests map[string][]string

func requestsOf(c *resourcev1.DeviceClaim) requests {
	names := requests{}
	for i := range c.Requests {
		r := &c.Requests[i]
		names[r.Name] = nil
		for j := range r.FirstAvailable {
			names[r.Name] = append(names[r.Name], r.FirstAvailable[j].Name)
		}
	}
	return names
}

// reference checks that a name is the name of a request, or of a request and a subrequest of it.
func (r requests) reference(name *string, at *field.Path) field.ErrorList {
	parts := strings.Split(*name, "/")
	if len(parts) > 2 {
		return field.ErrorList{field.Invalid(at, *name, notARequest)}
	}
	var errs field.ErrorList
	for _, part := range parts {
		errs = append(errs, label(part, at)...)
	}
	subs, known := r[parts[0]]
	if !known || len(parts) == 2 && !slices.Contains(subs, parts[1]) {
		errs = append(errs, field.Invalid(at, *name, notARequest))
	}
	return errs
}

// references checks a list of such names.
func (r requests) references(list []string, at *field.Path) field.ErrorList {
	return eachOf(list, resourcev1.DeviceRequestsMaxSize, at.Child("requests"), self, r.reference)
}

func validateDeviceClaim(c *resourcev1.DeviceClaim, at *field.Path) field.ErrorList {
	names := requestsOf(c)
	errs := eachOf(c.Requests, resourcev1.DeviceRequestsMaxSize, at.Child("requests"),
		func(r *resourcev1.DeviceRequest) string { return r.Name }, validateRequest)
	errs = append(errs,
		each(c.Constraints, resourcev1.DeviceConstraintsMaxSize, at.Child("constraints"),
			func(c *resourcev1.DeviceConstraint, at *field.Path) field.ErrorList {
				return append(names.references(c.Requests, at), validateConstraint(c, at)...)
			})...)
	return append(errs,
		each(c.Config, resourcev1.DeviceConfigMaxSize, at.Child("config"),
			func(c *resourcev1.DeviceClaimConfiguration, at *field.Path) field.ErrorList {
				return append(names.references(c.Requests, at),
					validateConfiguration(&c.DeviceConfiguration, false, at)...)
			})...)
}

func validateConstraint(c *resourcev1.DeviceConstraint, at *field.Path) field.ErrorList {
	switch {
	case c.MatchAttribute != nil:
		return fullyQualified(c.MatchAttribute, at.Child("matchAttribute"))
	case c.DistinctAttribute != nil:
		return fullyQualified(c.DistinctAttribute, at.Child("distinctAttribute"))
	}
	return field.ErrorList{
		field.Required(at,
			`exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`)}
}

// fullyQualified checks the name of an attribute, which has a domain.
func fullyQualified(name *resourcev1.FullyQualifiedName, at *field.Path) field.ErrorList {
	return validate.ResourceFullyQualifiedName(context.Background(), operation.Operation{}, at, name, nil)
}

func validateRequest(r *resourcev1.DeviceRequest, at *field.Path) field.ErrorList {
	const one = "exactly one of `exactly` or `firstAvailable` is required"
	errs := label(r.Name, at.Child("name"))
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		errs = append(errs, field.Required(at, one))
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		errs = append(errs, field.Invalid(at, nil, one+", but multiple fields are set"))
	case r.Exactly != nil:
		e := r.Exactly
		errs = append(errs,
			validateAsked(e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations,
				at.Child("exactly"))...)
	default:
		errs = append(errs,
			eachOf(r.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize, at.Child("firstAvailable"),
				func(s *resourcev1.DeviceSubRequest) string { return s.Name },
				func(s *resourcev1.DeviceSubRequest, at *field.Path) field.ErrorList {
					return append(label(s.Name, at.Child("name")),
						validateAsked(s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations, at)...)
				})...)
	}
	return errs
}

// validateAsked checks the class, the selectors and the number of the requested devices.
func validateAsked(
	class string, selectors []resourcev1.DeviceSelector, mode resourcev1.DeviceAllocationMode, count int64,
	tolerations []resourcev1.DeviceToleration, at *field.Path,
) field.ErrorList {
	errs := validation.Name(class, at.Child("deviceClassName"), utilvalidation.IsDNS1123Subdomain)
	errs = append(errs, validateSelectors(selectors, false, at.Child("selectors"))...)
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if count != 0 {
			errs = append(errs,
				field.Invalid(at.Child("count"), count,
					fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if count <= 0 {
			errs = append(errs, field.Invalid(at.Child("count"), count, "must be greater than zero"))
		}
	default:
		errs = append(errs,
			field.NotSupported(at.Child("allocationMode"), mode,
				[]resourcev1.DeviceAllocationMode{resourcev1.DeviceAllocationModeAll,
					resourcev1.DeviceAllocationModeExactCount}))
	}
	return append(errs, each(tolerations, unbounded, at.Child("tolerations"), validateToleration)...)
}
