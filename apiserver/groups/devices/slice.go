package devices

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func resourceSlices() resource.Resource {
	return &resource.Kind[resourcev1.ResourceSlice]{
		GroupVersion:  version,
		Name:          "resourceslices",
		Singular:      "resourceslice",
		ClusterScoped: true,
		List:          &resourcev1.ResourceSliceList{},
		ReturnDeleted: true,
		Generation:    true,
		Default: func(s *resourcev1.ResourceSlice) {
			for i := range s.Spec.Devices {
				for j := range s.Spec.Devices[i].Taints {
					defaultTaint(&s.Spec.Devices[i].Taints[j])
				}
			}
		},
		Prepare:  func(_ context.Context, s, _ *resourcev1.ResourceSlice) { dropFromSlice(&s.Spec) },
		Validate: validateSlice,
		Warnings: func(_ context.Context, s, _ *resourcev1.ResourceSlice) []string {
			if s.Spec.Driver == strings.ToLower(s.Spec.Driver) {
				return nil
			}
			return []string{
				fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters",
					s.Spec.Driver)}
		},
		Fields: func(s *resourcev1.ResourceSlice) fields.Set {
			return fields.Set{
				resourcev1.ResourceSliceSelectorNodeName: ptr.Deref(s.Spec.NodeName, ""),
				resourcev1.ResourceSliceSelectorDriver:   s.Spec.Driver,
				resourcev1.ResourceSliceSelectorPoolName: s.Spec.Pool.Name,
			}
		},
		IndexFields: []string{resourcev1.ResourceSliceSelectorNodeName},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Node", "string", "The node that the devices are on."),
			resource.Column("Driver", "string", "The driver that offers the devices."),
			resource.Column("Pool", "string", "The pool that the devices belong to."),
			resource.Age(),
		},
		Row: func(s *resourcev1.ResourceSlice, now time.Time) []any {
			return []any{s.Name, ptr.Deref(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name,
				resource.Since(s.CreationTimestamp, now)}
		},
	}
}

// dropFromSlice drops fields of features that are off by default.
func dropFromSlice(s *resourcev1.ResourceSliceSpec) {
	s.PartitionTypeAttribute, s.SkipNodeOperations = nil, nil
	for i := range s.Devices {
		d := &s.Devices[i]
		d.NodeAllocatableResources = nil
		for j := range d.ConsumesCounters {
			d.ConsumesCounters[j].CompatibilityGroups = nil
		}
		for name, a := range d.Attributes {
			a.IntValues, a.BoolValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
			d.Attributes[name] = a
		}
	}
}

func validateSlice(_ context.Context, s, old *resourcev1.ResourceSlice) field.ErrorList {
	errs := validation.Meta(s, old, false, validation.SubdomainName)
	spec, at := &s.Spec, field.NewPath("spec")
	errs = append(errs, driverName(spec.Driver, at.Child("driver"))...)
	errs = append(errs, validatePool(&spec.Pool, at.Child("pool"))...)
	was := map[string]*resourcev1.Device{}
	if old != nil {
		errs = append(errs, validation.Immutable(spec.Pool.Name, old.Spec.Pool.Name, at.Child("pool", "name"))...)
		errs = append(errs, validation.Immutable(spec.Driver, old.Spec.Driver, at.Child("driver"))...)
		errs = append(errs, validation.Immutable(spec.NodeName, old.Spec.NodeName, at.Child("nodeName"))...)
		for i := range old.Spec.Devices {
			was[old.Spec.Devices[i].Name] = &old.Spec.Devices[i]
		}
	}
	errs = append(errs, validateNodes(spec, at)...)
	if spec.SharedCounters != nil && spec.Devices != nil {
		errs = append(errs, field.Invalid(at, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	errs = append(errs, eachOf(spec.Devices, mostDevices(spec), at.Child("devices"),
		func(d *resourcev1.Device) string { return d.Name },
		func(d *resourcev1.Device, at *field.Path) field.ErrorList {
			return validateDevice(d, was[d.Name], ptr.Deref(spec.PerDeviceNodeSelection, false), at)
		})...)
	return append(errs, eachOf(spec.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, at.Child("sharedCounters"),
		func(c *resourcev1.CounterSet) string { return c.Name },
		func(c *resourcev1.CounterSet, at *field.Path) field.ErrorList {
			return validateCounters(c.Name, at.Child("name"), c.Counters,
				resourcev1.ResourceSliceMaxCountersPerCounterSet, at.Child("counters"))
		})...)
}

// mostDevices is how many devices a slice may have: fewer when some have taints or share counters.
func mostDevices(s *resourcev1.ResourceSliceSpec) int {
	for i := range s.Devices {
		if len(s.Devices[i].Taints) > 0 || len(s.Devices[i].ConsumesCounters) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}

func validatePool(p *resourcev1.ResourcePool, at *field.Path) field.ErrorList {
	errs := poolName(p.Name, at.Child("name"))
	if p.ResourceSliceCount <= 0 {
		errs = append(errs,
			field.Invalid(at.Child("resourceSliceCount"), p.ResourceSliceCount, "must be greater than zero"))
	}
	if p.Generation < 0 {
		errs = append(errs,
			field.Invalid(at.Child("generation"), p.Generation, "must be greater than or equal to zero"))
	}
	return errs
}

// validateNodes checks that a slice selects in exactly one way the nodes that reach its devices.
func validateNodes(s *resourcev1.ResourceSliceSpec, at *field.Path) field.ErrorList {
	const one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	errs, ways := validateReach(s.NodeName, s.NodeSelector, s.AllNodes,
		"must be either unset or set to a non-empty string", at)
	if s.NodeSelector != nil && len(s.NodeSelector.NodeSelectorTerms) != 1 {
		errs = append(errs,
			field.Invalid(at.Child("nodeSelector", "nodeSelectorTerms"), s.NodeSelector.NodeSelectorTerms,
				"must have exactly one node selector term"))
	}
	if p := s.PerDeviceNodeSelection; p != nil && *p {
		ways = append(ways, "`perDeviceNodeSelection`")
	} else if p != nil {
		errs = append(errs,
			field.Invalid(at.Child("perDeviceNodeSelection"), *p, "must be either unset or set to true"))
	}
	switch {
	case len(ways) == 0:
		errs = append(errs, field.Required(at, one))
	case len(ways) > 1:
		errs = append(errs, field.Invalid(at, "{"+strings.Join(ways, ", ")+"}", one+", but multiple fields are set"))
	}
	return errs
}

// validateDeviceNodes is validateNodes for a device; only devices of slices with
// PerDeviceNodeSelection have nodes of their own.
func validateDeviceNodes(d *resourcev1.Device, perDevice bool, at *field.Path) field.ErrorList {
	const one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	if !perDevice {
		if d.NodeName == nil && d.NodeSelector == nil && d.AllNodes == nil {
			return nil
		}
		return field.ErrorList{
			field.Invalid(at, nil,
				"`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
	}
	errs, ways := validateReach(d.NodeName, d.NodeSelector, d.AllNodes, "must not be empty", at)
	switch {
	case len(ways) == 0:
		errs = append(errs, field.Required(at, one))
	case len(ways) > 1:
		errs = append(errs, field.Invalid(at, "{"+strings.Join(ways, ", ")+"}", one))
	}
	return errs
}

// validateReach checks which nodes reach a device, and returns the fields that select them.
func validateReach(
	name *string, selector *corev1.NodeSelector, all *bool, emptyName string, at *field.Path,
) (errs field.ErrorList, ways []string) {
	if name != nil && *name != "" {
		ways = append(ways, "`nodeName`")
		errs = append(errs, nodeName(*name, at.Child("nodeName"))...)
	} else if name != nil {
		errs = append(errs, field.Invalid(at.Child("nodeName"), *name, emptyName))
	}
	if selector != nil {
		ways = append(ways, "`nodeSelector`")
		errs = append(errs, podtemplate.ValidateNodeSelector(selector, at.Child("nodeSelector"))...)
	}
	if all != nil && *all {
		ways = append(ways, "`allNodes`")
	} else if all != nil {
		errs = append(errs, field.Invalid(at.Child("allNodes"), *all, "must be either unset or set to true"))
	}
	return errs, ways
}
