package storage

import (
	"context"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func capacities() resource.Resource {
	return &resource.Kind[storagev1.CSIStorageCapacity]{
		GroupVersion:    version,
		Name:            "csistoragecapacities",
		Singular:        "csistoragecapacity",
		List:            &storagev1.CSIStorageCapacityList{},
		VersionedUpdate: true,
		Validate:        validateCapacity,
		Warnings: func(_ context.Context, c, _ *storagev1.CSIStorageCapacity) []string {
			if c.NodeTopology == nil {
				return nil
			}
			var warnings []string
			at := field.NewPath("nodeTopology")
			for i, e := range c.NodeTopology.MatchExpressions {
				warnings = append(warnings,
					validation.NodeLabelWarning(e.Key, at.Child("matchExpressions").Index(i).Child("key"))...)
			}
			for _, key := range validation.SortedKeys(c.NodeTopology.MatchLabels) {
				warnings = append(warnings,
					validation.NodeSelectorWarnings(map[string]string{key: ""}, at.Child("matchLabels").Child(key))...)
			}
			return warnings
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("StorageClassName", "string", "The class of the volumes that fit."),
			resource.Column("Capacity", "string", "How much there is."),
		},
		Row: func(c *storagev1.CSIStorageCapacity, _ time.Time) []any {
			capacity := "<unset>"
			if c.Capacity != nil {
				q := c.Capacity.DeepCopy()
				capacity = q.String()
			}
			return []any{c.Name, c.StorageClassName, capacity}
		},
	}
}

func validateCapacity(_ context.Context, c, old *storagev1.CSIStorageCapacity) field.ErrorList {
	errs := validation.Meta(c, old, true, validation.SubdomainName)
	topology, class := field.NewPath("nodeTopology"), field.NewPath("storageClassName")
	errs = append(errs, validation.LabelSelector(c.NodeTopology, topology)...)
	errs = append(errs, validation.Check(c.StorageClassName, class, utilvalidation.IsDNS1123Subdomain)...)
	if c.Capacity != nil && c.Capacity.Sign() < 0 {
		q := c.Capacity.DeepCopy()
		errs = append(errs, field.Invalid(field.NewPath("capacity"), q.String(), "must be greater than or equal to 0"))
	}
	if old != nil && !apiequality.Semantic.DeepEqual(c.NodeTopology, old.NodeTopology) {
		errs = append(errs, field.Invalid(topology, c.NodeTopology, "field is immutable"))
	}
	if old != nil && c.StorageClassName != old.StorageClassName {
		errs = append(errs, field.Invalid(class, c.StorageClassName, "field is immutable"))
	}
	return errs
}
