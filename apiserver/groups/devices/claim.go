package devices

import (
	"context"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	resourcev1 "k8s.io/api/resource/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func resourceClaims() resource.Resource {
	return &resource.Kind[resourcev1.ResourceClaim]{
		GroupVersion:  version,
		Name:          "resourceclaims",
		Singular:      "resourceclaim",
		List:          &resourcev1.ResourceClaimList{},
		ReturnDeleted: true,
		Default:       defaultClaim,
		Prepare: func(_ context.Context, c, _ *resourcev1.ResourceClaim) {
			dropFromRequests(c.Spec.Devices.Requests)
		},
		Validate: validateClaim,
		Status: &resource.Status[resourcev1.ResourceClaim]{
			Prepare:  prepareClaimStatus,
			Validate: validateClaimStatus,
			Reset:    []fieldpath.Path{fieldpath.MakePathOrDie("metadata")},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("State", "string",
				"Whether the claim is pending, or its devices are allocated and reserved."),
			resource.Age(),
		},
		Row: func(c *resourcev1.ResourceClaim, now time.Time) []any {
			return []any{c.Name, claimState(c), resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func resourceClaimTemplates() resource.Resource {
	return &resource.Kind[resourcev1.ResourceClaimTemplate]{
		GroupVersion:  version,
		Name:          "resourceclaimtemplates",
		Singular:      "resourceclaimtemplate",
		List:          &resourcev1.ResourceClaimTemplateList{},
		ReturnDeleted: true,
		Default: func(t *resourcev1.ResourceClaimTemplate) {
			defaultRequests(t.Spec.Spec.Devices.Requests)
		},
		Prepare: func(_ context.Context, t, _ *resourcev1.ResourceClaimTemplate) {
			dropFromRequests(t.Spec.Spec.Devices.Requests)
		},
		Validate: validateClaimTemplate,
		Columns:  []metav1.TableColumnDefinition{resource.Name(), resource.Age()},
		Row: func(t *resourcev1.ResourceClaimTemplate, now time.Time) []any {
			return []any{t.Name, resource.Since(t.CreationTimestamp, now)}
		},
	}
}

func claimState(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	case c.DeletionTimestamp == nil:
		states = append(states, "pending")
	}
	return strings.Join(states, ",")
}

func defaultClaim(c *resourcev1.ResourceClaim) {
	defaultRequests(c.Spec.Devices.Requests)
	if a := c.Status.Allocation; a != nil {
		for i := range a.Devices.Results {
			defaultTolerations(a.Devices.Results[i].Tolerations)
		}
	}
}

func defaultRequests(list []resourcev1.DeviceRequest) {
	for i := range list {
		if e := list[i].Exactly; e != nil {
			defaultCount(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for j := range list[i].FirstAvailable {
			sub := &list[i].FirstAvailable[j]
			defaultCount(&sub.AllocationMode, &sub.Count)
			defaultTolerations(sub.Tolerations)
		}
	}
}

// defaultCount requests one device.
func defaultCount(mode *resourcev1.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

// dropFromRequests drops fields of features that are off by default.
func dropFromRequests(list []resourcev1.DeviceRequest) {
	for i := range list {
		if e := list[i].Exactly; e != nil {
			e.DerivedAttributes = nil
		}
		for j := range list[i].FirstAvailable {
			list[i].FirstAvailable[j].DerivedAttributes = nil
		}
	}
}

func validateClaim(_ context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
	errs := validation.Meta(c, old, true, validation.SubdomainName)
	at := field.NewPath("spec")
	if old != nil {
		return append(errs, validation.Immutable(c.Spec, old.Spec, at)...)
	}
	return append(errs, validateDeviceClaim(&c.Spec.Devices, at.Child("devices"))...)
}

func validateClaimTemplate(_ context.Context, t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
	errs := validation.Meta(t, old, true, validation.SubdomainName)
	at := field.NewPath("spec")
	errs = append(errs, validateTemplateMeta(&t.Spec.ObjectMeta, at.Child("metadata"))...)
	errs = append(errs, validateDeviceClaim(&t.Spec.Spec.Devices, at.Child("spec", "devices"))...)
	if old != nil {
		errs = append(errs, validation.Immutable(t.Spec, old.Spec, at)...)
	}
	return errs
}

// validateTemplateMeta checks the metadata of claims to be made, which have labels and annotations
// only.
func validateTemplateMeta(meta *metav1.ObjectMeta, at *field.Path) field.ErrorList {
	errs := apivalidation.ValidateAnnotations(meta.Annotations, at.Child("annotations"))
	errs = append(errs, validation.Labels(meta.Labels, at.Child("labels"))...)
	v := reflect.ValueOf(*meta)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if name == "Annotations" || name == "Labels" || v.Field(i).IsZero() {
			continue
		}
		first, size := utf8.DecodeRuneInString(name)
		errs = append(errs, field.Forbidden(at.Child(string(unicode.ToLower(first))+name[size:]), "cannot be set"))
	}
	return errs
}
