package apps

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func controllerRevisions() resource.Resource {
	return &resource.Kind[appsv1.ControllerRevision]{
		GroupVersion: version,
		Name:         "controllerrevisions",
		Singular:     "controllerrevision",
		List:         &appsv1.ControllerRevisionList{},
		Validate:     validateControllerRevision,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Controller", "string", "The object whose state the revision holds."),
			// a number, but upstream says string
			resource.Column("Revision", "string", "Which version of that state it is."),
			resource.Age(),
		},
		Row: func(r *appsv1.ControllerRevision, now time.Time) []any {
			return []any{r.Name, controllerName(r), r.Revision, resource.Since(r.CreationTimestamp, now)}
		},
	}
}

// controllerName is the controller of a revision as kubectl names objects: statefulset.apps/web.
func controllerName(r *appsv1.ControllerRevision) string {
	owner := metav1.GetControllerOf(r)
	if owner == nil {
		return resource.None
	}
	kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	if kind.Empty() {
		return owner.Name
	}
	return strings.ToLower(kind.String()) + "/" + owner.Name
}

// validateControllerRevision: the data of a revision never changes. Its number may, as rolling back
// makes an old revision the newest.
func validateControllerRevision(_ context.Context, r, old *appsv1.ControllerRevision) field.ErrorList {
	errs := validation.Meta(r, old, true, validation.SubdomainName)
	errs = append(errs, validation.NonNegative(r.Revision, field.NewPath("revision"))...)
	at := field.NewPath("data")
	if old != nil {
		return append(errs, validation.Immutable(r.Data, old.Data, at)...)
	}
	return append(errs, validateRevisionData(r.Data.Raw, at)...)
}

func validateRevisionData(raw []byte, at *field.Path) field.ErrorList {
	if raw == nil {
		return field.ErrorList{field.Required(at, "data is mandatory")}
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return field.ErrorList{field.Invalid(at, "<value omitted>", fmt.Sprintf("error parsing data: %v", err))}
	}
	switch v.(type) {
	case map[string]any:
		return nil
	case nil:
		return field.ErrorList{field.Required(at, "data is mandatory")}
	}
	return field.ErrorList{field.Required(at, "data must be a valid JSON object")}
}
