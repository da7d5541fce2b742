// Package flowcontrol declares the resources of the flowcontrol.apiserver.k8s.io API group: the
// priority levels of requests to the API, and the schemas that assign a level to a request.
package flowcontrol

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/resource"
)

var version = flowcontrolv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{flowSchemas(), priorityLevels()}
}

// ofStatus are the fields that a write to a status does not own.
func ofStatus() []fieldpath.Path { return []fieldpath.Path{fieldpath.MakePathOrDie("metadata")} }

// keepMeta lets a write to the status change no metadata except the managed fields.
func keepMeta(meta, old *metav1.ObjectMeta) {
	managed := meta.ManagedFields
	old.DeepCopyInto(meta)
	meta.ManagedFields = managed
}

// validateTypes checks the types of the conditions of a status.
func validateTypes[T ~string](types []T) field.ErrorList {
	var errs field.ErrorList
	seen := map[T]bool{}
	for i, t := range types {
		at := field.NewPath("status", "conditions").Index(i).Child("type")
		if t == "" {
			errs = append(errs, field.Required(at, ""))
		}
		if seen[t] {
			errs = append(errs, field.Duplicate(at, t))
		}
		seen[t] = true
	}
	return errs
}
