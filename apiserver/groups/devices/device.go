package devices

import (
	"fmt"
	"regexp"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// semanticVersion is the grammar of semver.org 2.0.0.
var semanticVersion = func() *regexp.Regexp {
	const number, build = `(0|[1-9]\d*)`, `[0-9a-zA-Z-]+`
	const pre = `(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)`
	return regexp.MustCompile(`^` + number + `\.` + number + `\.` + number +
		`(-` + pre + `(\.` + pre + `)*)?` + `(\+` + build + `(\.` + build + `)*)?$`)
}()

// validateDevice checks a device of a slice. Stored values of the device stay valid.
func validateDevice(d, old *resourcev1.Device, perDeviceNodes bool, at *field.Path) field.ErrorList {
	errs := label(d.Name, at.Child("name"))
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs,
			field.Invalid(at, n,
				fmt.Sprintf("the total number of attributes and capacities must not exceed %d",
					resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	if n := len(d.Attributes); n > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		errs = append(errs,
			field.Invalid(at, n,
				fmt.Sprintf("the total number of attribute values must not exceed %d",
					resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	}
	errs = append(errs, entries(d.Attributes, unbounded, at.Child("attributes"), qualifiedName, validateAttribute)...)
	if old == nil || !apiequality.Semantic.DeepEqual(old.Capacity, d.Capacity) {
		check := validateWholeCapacity
		if ptr.Deref(d.AllowMultipleAllocations, false) {
			check = validateCapacity
		}
		errs = append(errs, entries(d.Capacity, unbounded, at.Child("capacity"), qualifiedName, check)...)
	}
	if old == nil || !apiequality.Semantic.DeepEqual(old.Taints, d.Taints) {
		errs = append(errs,
			each(d.Taints, resourcev1.DeviceTaintsMaxLength, at.Child("taints"),
				func(t *resourcev1.DeviceTaint, at *field.Path) field.ErrorList {
					return validateTaint(t, nil, at)
				})...)
	}
	errs = append(errs,
		eachOf(d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice,
			at.Child("consumesCounters"),
			func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet },
			func(c *resourcev1.DeviceCounterConsumption, at *field.Path) field.ErrorList {
				return validateCounters(c.CounterSet, at.Child("counterSet"), c.Counters,
					resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, at.Child("counters"))
			})...)
	errs = append(errs, validateDeviceNodes(d, perDeviceNodes, at)...)
	return append(errs, validateBinding(d.BindingConditions, d.BindingFailureConditions, at)...)
}

// validateCounters checks a named set of counters. Any quantity is valid.
func validateCounters(
	name string, nameAt *field.Path, counters map[string]resourcev1.Counter, most int, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	if name == "" {
		errs = append(errs, field.Required(nameAt, ""))
	} else {
		errs = append(errs, label(name, nameAt)...)
	}
	if len(counters) == 0 {
		return append(errs, field.Required(at, ""))
	}
	return append(errs,
		entries(counters, most, at, label, func(*resourcev1.Counter, *field.Path) field.ErrorList { return nil })...)
}

// validateAttribute checks that an attribute has exactly one value.
func validateAttribute(a *resourcev1.DeviceAttribute, at *field.Path) field.ErrorList {
	const longest, one = resourcev1.DeviceAttributeMaxValueLength, "exactly one value must be specified"
	var errs field.ErrorList
	values := 0
	if a.IntValue != nil {
		values++
	}
	if a.BoolValue != nil {
		values++
	}
	if s := a.StringValue; s != nil {
		values++
		if len(*s) > longest {
			errs = append(errs, field.TooLong(at.Child("string"), "", longest))
		}
	}
	if v := a.VersionValue; v != nil {
		values++
		if !semanticVersion.MatchString(*v) {
			errs = append(errs,
				field.Invalid(at.Child("version"), *v, "must be a string compatible with semver.org spec 2.0.0"))
		}
		if len(*v) > longest {
			errs = append(errs, field.TooLong(at.Child("version"), "", longest))
		}
	}
	switch {
	case values == 0:
		errs = append(errs, field.Invalid(at, "", one))
	case values > 1:
		errs = append(errs, field.Invalid(at, a, one))
	}
	return errs
}
