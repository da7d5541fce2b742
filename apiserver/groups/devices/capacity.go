package devices

import (
	"fmt"
	"math"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// mostChoices is how many values of a capacity may be listed.
const mostChoices = 10

// validateWholeCapacity checks a capacity of a device that is allocated as a whole.
func validateWholeCapacity(c *resourcev1.DeviceCapacity, at *field.Path) field.ErrorList {
	if c.RequestPolicy != nil {
		return field.ErrorList{field.Forbidden(at.Child("requestPolicy"), "allowMultipleAllocations must be true")}
	}
	return nil
}

// validateCapacity checks a capacity of which claims take their parts.
func validateCapacity(c *resourcev1.DeviceCapacity, at *field.Path) field.ErrorList {
	p := c.RequestPolicy
	if p == nil {
		return nil
	}
	at = at.Child("requestPolicy")
	switch {
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		return field.ErrorList{
			field.Forbidden(at,
				`exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(p.ValidValues) > 0 && p.Default == nil:
		return field.ErrorList{field.Required(at.Child("default"), "required when validValues is defined")}
	case len(p.ValidValues) > 0:
		return validateChoices(p.Default, &c.Value, p.ValidValues, at.Child("validValues"))
	case p.ValidRange != nil && p.Default == nil:
		return field.ErrorList{field.Required(at.Child("default"), "required when validRange is defined")}
	case p.ValidRange != nil:
		return validateRange(p.Default, &c.Value, p.ValidRange, at.Child("validRange"))
	}
	return nil
}

// validateChoices checks that listed values ascend up to the capacity, and that the default is one
// of them.
func validateChoices(
	byDefault, capacity *resource.Quantity, values []resource.Quantity, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	for i := 1; i < len(values); i++ {
		if values[i-1].Cmp(values[i]) > 0 {
			errs = append(errs,
				field.Invalid(at.Index(i), values[i].String(), "values must be sorted in ascending order"))
		}
	}
	found := false
	errs = append(errs, eachOf(values, mostChoices, at,
		func(q *resource.Quantity) string { return strconv.FormatInt(q.Value(), 10) },
		func(q *resource.Quantity, at *field.Path) field.ErrorList {
			found = found || q.Cmp(*byDefault) == 0
			if q.Cmp(*capacity) <= 0 {
				return nil
			}
			return field.ErrorList{
				field.Invalid(at, q.String(), "option is larger than capacity value: "+capacity.String())}
		})...)
	if !found {
		errs = append(errs,
			field.Invalid(at, byDefault.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

// validateRange checks that a range is valid, within the capacity, and includes the default.
func validateRange(
	byDefault, capacity *resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, at *field.Path,
) field.ErrorList {
	if r.Min == nil {
		return field.ErrorList{field.Required(at.Child("min"), "required when validRange is defined")}
	}
	var errs field.ErrorList
	if r.Min.Cmp(*capacity) > 0 {
		errs = append(errs,
			field.Invalid(at.Child("min"), r.Min.String(), "min is larger than capacity value: "+capacity.String()))
	}
	if byDefault.Cmp(*r.Min) < 0 {
		errs = append(errs,
			field.Invalid(at.Child("default"), byDefault.String(), "default is less than min: "+r.Min.String()))
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			errs = append(errs,
				field.Invalid(at.Child("max"), r.Min.String(), "min is larger than max: "+r.Max.String()))
		}
		if r.Max.Cmp(*capacity) > 0 {
			errs = append(errs,
				field.Invalid(at.Child("max"), r.Max.String(), "max is larger than capacity value: "+capacity.String()))
		}
		if byDefault.Cmp(*r.Max) > 0 {
			errs = append(errs,
				field.Invalid(at.Child("default"), byDefault.String(), "default is more than max: "+r.Max.String()))
		}
	}
	if r.Step == nil {
		return errs
	}
	return append(errs, validateStep(byDefault, capacity, r, at)...)
}

// validateStep checks that the default and the end of a range are whole steps from its begin.
func validateStep(
	byDefault, capacity *resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, at *field.Path,
) field.ErrorList {
	step := at.Child("step")
	if r.Step.Sign() <= 0 {
		return field.ErrorList{field.Invalid(step, r.Step.String(), "must be greater than zero")}
	}
	var errs field.ErrorList
	first := r.Min.DeepCopy()
	first.Add(*r.Step)
	if first.Cmp(*capacity) > 0 {
		errs = append(errs,
			field.Invalid(step, r.Step.String(),
				fmt.Sprintf("one step %s is larger than capacity value: %s", first.String(), capacity.String())))
	}
	// Numbers beyond these cannot be divided.
	safe := true
	for _, part := range []struct {
		name  string
		value *resource.Quantity
	}{{"default", byDefault}, {"min", r.Min}, {"max", r.Max}, {"step", r.Step}} {
		switch {
		case part.value == nil:
			continue
		case part.value.Sign() < 0:
			errs = append(errs,
				field.Invalid(at.Child(part.name), part.value.String(), apivalidation.IsNegativeErrorMsg))
		case part.value.CmpInt64(math.MaxInt64) > 0:
			errs = append(errs,
				field.Invalid(at.Child(part.name), part.value.String(),
					fmt.Sprintf("must not be larger than %d", math.MaxInt64)))
		default:
			continue
		}
		safe = false
	}
	if !safe {
		return errs
	}
	for _, end := range []*resource.Quantity{byDefault, r.Max} {
		if end != nil && (end.Value()-r.Min.Value())%r.Step.Value() != 0 {
			errs = append(errs,
				field.Invalid(step, end.String(),
					fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(),
						r.Min.String())))
		}
	}
	return errs
}
