package storage

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// defaultAnnotation marks the class of claims that name none.
const defaultAnnotation = "storageclass.kubernetes.io/is-default-class"

func storageClasses() resource.Resource {
	return &resource.Kind[storagev1.StorageClass]{
		GroupVersion:  version,
		Name:          "storageclasses",
		Singular:      "storageclass",
		ShortNames:    []string{"sc"},
		ClusterScoped: true,
		List:          &storagev1.StorageClassList{},
		ReturnDeleted: true,
		Default: func(c *storagev1.StorageClass) {
			if c.ReclaimPolicy == nil {
				c.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimDelete)
			}
			if c.VolumeBindingMode == nil {
				c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
			}
		},
		Validate: validateStorageClass,
		Warnings: func(_ context.Context, c, _ *storagev1.StorageClass) []string {
			var warnings []string
			for i, term := range c.AllowedTopologies {
				for j, e := range term.MatchLabelExpressions {
					at := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child(
						"key")
					warnings = append(warnings, validation.NodeSelectorWarnings(map[string]string{e.Key: ""}, at)...)
				}
			}
			return warnings
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Provisioner", "string", "What makes the volumes of the class."),
			resource.Column("ReclaimPolicy", "string", "What becomes of a volume when its claim goes."),
			resource.Column("VolumeBindingMode", "string", "When volumes are made and bound."),
			resource.Column("AllowVolumeExpansion", "string", "Whether volumes of the class can grow."),
			resource.Age(),
		},
		Row: func(c *storagev1.StorageClass, now time.Time) []any {
			name := c.Name
			if c.Annotations[defaultAnnotation] == "true" {
				name += " (default)"
			}
			return []any{name, c.Provisioner,
				string(ptr.Deref(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
				string(ptr.Deref(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)),
				fmt.Sprint(ptr.Deref(c.AllowVolumeExpansion, false)),
				resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func validateStorageClass(_ context.Context, c, old *storagev1.StorageClass) field.ErrorList {
	errs := validation.Meta(c, old, false, validation.SubdomainName)
	errs = append(errs, validateProvisioner(c.Provisioner, field.NewPath("provisioner"))...)
	errs = append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
	if p := c.ReclaimPolicy; p != nil && *p != "" {
		errs = append(errs,
			validation.Enum(*p, field.NewPath("reclaimPolicy"), corev1.PersistentVolumeReclaimDelete,
				corev1.PersistentVolumeReclaimRetain)...)
	}
	if at := field.NewPath("volumeBindingMode"); c.VolumeBindingMode == nil {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs,
			validation.OneOf(*c.VolumeBindingMode, at, storagev1.VolumeBindingImmediate,
				storagev1.VolumeBindingWaitForFirstConsumer)...)
	}
	errs = append(errs, validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
	if old == nil {
		return errs
	}
	errs = append(errs, validation.Immutable(c.Parameters, old.Parameters, field.NewPath("parameters"))...)
	errs = append(errs, validation.Immutable(c.Provisioner, old.Provisioner, field.NewPath("provisioner"))...)
	errs = append(errs, validation.Immutable(c.ReclaimPolicy, old.ReclaimPolicy, field.NewPath("reclaimPolicy"))...)
	return append(errs,
		validation.Immutable(c.VolumeBindingMode, old.VolumeBindingMode, field.NewPath("volumeBindingMode"))...)
}

func validateTopologies(terms []corev1.TopologySelectorTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	// A term without expressions is a duplicate of nothing, which kube-apiserver refuses, too.
	before := make([]map[string]sets.Set[string], len(terms))
	for i, term := range terms {
		at := at.Index(i).Child("matchLabelExpressions")
		byKey := map[string]sets.Set[string]{}
		for j, e := range term.MatchLabelExpressions {
			at := at.Index(j)
			if len(e.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), ""))
			}
			values := sets.New[string]()
			for k, v := range e.Values {
				if values.Has(v) {
					errs = append(errs, field.Duplicate(at.Child("values").Index(k), v))
				}
				values.Insert(v)
			}
			errs = append(errs, metav1validation.ValidateLabelName(e.Key, at.Child("key"))...)
			if _, twice := byKey[e.Key]; twice {
				errs = append(errs, field.Duplicate(at.Child("key"), e.Key))
			}
			byKey[e.Key] = values
		}
		for _, other := range before {
			if apiequality.Semantic.DeepEqual(other, byKey) {
				errs = append(errs, field.Duplicate(at, ""))
			}
		}
		before = append(before, byKey)
	}
	return errs
}

func volumeAttributesClasses() resource.Resource {
	return &resource.Kind[storagev1.VolumeAttributesClass]{
		GroupVersion:  version,
		Name:          "volumeattributesclasses",
		Singular:      "volumeattributesclass",
		ShortNames:    []string{"vac"},
		ClusterScoped: true,
		List:          &storagev1.VolumeAttributesClassList{},
		ReturnDeleted: true,
		Validate:      validateAttributesClass,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("DriverName", "string", "The driver that knows the attributes."),
			resource.Age(),
		},
		Row: func(c *storagev1.VolumeAttributesClass, now time.Time) []any {
			return []any{c.Name, c.DriverName, resource.Since(c.CreationTimestamp, now)}
		},
	}
}

func validateAttributesClass(_ context.Context, c, old *storagev1.VolumeAttributesClass) field.ErrorList {
	errs := validation.Meta(c, old, false, validation.SubdomainName)
	driver, parameters := field.NewPath("driverName"), field.NewPath("parameters")
	if old != nil && c.DriverName != old.DriverName {
		errs = append(errs, field.Forbidden(driver, "updates to driverName are forbidden."))
	}
	if old != nil && !apiequality.Semantic.DeepEqual(c.Parameters, old.Parameters) {
		errs = append(errs, field.Forbidden(parameters, "updates to parameters are forbidden."))
	}
	errs = append(errs, validateProvisioner(c.DriverName, driver)...)
	errs = append(errs, validateParameters(c.Parameters, parameters)...)
	if len(c.Parameters) == 0 {
		errs = append(errs, field.Required(parameters, "must contain at least one key/value pair"))
	}
	return errs
}
