package storage

import (
	"context"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// longestNodeID is the length at most of the name that a driver has for a node.
const longestNodeID = 256

func driversOfNodes() resource.Resource {
	return &resource.Kind[storagev1.CSINode]{
		GroupVersion:    version,
		Name:            "csinodes",
		Singular:        "csinode",
		ClusterScoped:   true,
		List:            &storagev1.CSINodeList{},
		ReturnDeleted:   true,
		VersionedUpdate: true,
		Validate:        validateNode,
		// All that a status has is of an alpha feature, which is off.
		Status: &resource.Status[storagev1.CSINode]{
			Prepare: func(_ context.Context, n, old *storagev1.CSINode) {
				metav1.ResetObjectMetaForStatus(&n.ObjectMeta, &old.ObjectMeta)
				n.Status = old.Status
			},
			Reset: []fieldpath.Path{fieldpath.MakePathOrDie("metadata")},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Drivers", "integer", "How many drivers the node has."),
			resource.Age(),
		},
		Row: func(n *storagev1.CSINode, now time.Time) []any {
			return []any{n.Name, int64(len(n.Spec.Drivers)), resource.Since(n.CreationTimestamp, now)}
		},
	}
}

func validateNode(_ context.Context, n, old *storagev1.CSINode) field.ErrorList {
	errs := validation.Meta(n, old, false, validation.SubdomainName)
	at := field.NewPath("spec", "drivers")
	seen := map[string]bool{}
	for i := range n.Spec.Drivers {
		d, at := &n.Spec.Drivers[i], at.Index(i)
		errs = append(errs, validateNodeDriver(d, at)...)
		if seen[d.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
		}
		seen[d.Name] = true
	}
	if old == nil {
		return errs
	}
	for _, was := range old.Spec.Drivers {
		for _, is := range n.Spec.Drivers {
			if was.Name == is.Name {
				was.Allocatable, is.Allocatable = nil, nil
				errs = append(errs, validation.Immutable(is, was, at)...)
			}
		}
	}
	return errs
}

func validateNodeDriver(d *storagev1.CSINodeDriver, at *field.Path) field.ErrorList {
	errs := validation.DriverName(d.Name, at.Child("name"))
	if d.NodeID == "" {
		errs = append(errs, field.Required(at.Child("nodeID"), ""))
	}
	if len(d.NodeID) > longestNodeID {
		errs = append(errs,
			field.Invalid(at.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", longestNodeID)))
	}
	if d.Allocatable != nil {
		errs = append(errs, validation.OptionalNonNegative(d.Allocatable.Count, at.Child("allocatable", "count"))...)
	}
	seen := map[string]bool{}
	for _, key := range d.TopologyKeys {
		if seen[key] {
			errs = append(errs, field.Duplicate(at, key))
		}
		seen[key] = true
		if key == "" {
			errs = append(errs, field.Required(at, ""))
		}
		errs = append(errs, validation.Check(key, at, utilvalidation.IsQualifiedName)...)
	}
	return errs
}
