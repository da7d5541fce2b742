package definitions

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
)

// SelectableFields refuses a CustomResourceDefinition that has selectable fields beside a schema
// without openAPIV3Schema. The library's validation (v0.37) dereferences that schema before it says
// that one is required; the panic closes the connection, and the client gets no answer.
type SelectableFields struct{ *admission.Handler }

var _ admission.MutationInterface = SelectableFields{} // a mutating one comes before the validation

// NewSelectableFields returns the plugin.
func NewSelectableFields() SelectableFields {
	return SelectableFields{admission.NewHandler(admission.Create, admission.Update)}
}

// Admit implements admission.MutationInterface.
func (SelectableFields) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	crd, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil
	}
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if v := crd.Spec.Validation; len(crd.Spec.SelectableFields) > 0 && v != nil && v.OpenAPIV3Schema == nil {
		errs = append(errs, field.Required(spec.Child("validation", "openAPIV3Schema"), "schemas are required"))
	}
	for i, v := range crd.Spec.Versions {
		if len(v.SelectableFields) > 0 && v.Schema != nil && v.Schema.OpenAPIV3Schema == nil {
			errs = append(errs,
				field.Required(spec.Child("versions").Index(i).Child("schema", "openAPIV3Schema"),
					"schemas are required"))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(apiextensions.Kind("CustomResourceDefinition"), crd.Name, errs)
}
