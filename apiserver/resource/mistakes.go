package resource

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/operation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
)

// The most that an answer has of an object's mistakes: so many, and so many bytes of text.
const (
	mostMistakes     = 256
	mostMistakesText = 256 << 10
)

// BoundedMistakes, as a part of a strategy, leaves out mistakes beyond a readable number. An object
// of some KiB can hold thousands of them, each of which may quote a whole list, and apimachinery
// joins their texts at a cost that grows with the square of their number: without a limit a body of
// 6 KiB made the server allocate 1.4 GiB.
//
// The generic registry has one place that sees all mistakes, those of the metadata included: it is
// where declarative validation adds its own.
type BoundedMistakes struct{}

var _ rest.DeclarativeValidationStrategy = BoundedMistakes{}

// ValidateDeclaratively implements rest.DeclarativeValidationStrategy.
func (BoundedMistakes) ValidateDeclaratively(
	_ context.Context, _, _ runtime.Object, mistakes field.ErrorList, _ operation.Type,
	_ rest.DeclarativeValidationConfig,
) field.ErrorList {
	return bounded(mistakes)
}

// DeclarativeValidationConfig implements rest.DeclarativeValidationStrategy.
func (BoundedMistakes) DeclarativeValidationConfig(
	context.Context, runtime.Object, runtime.Object,
) rest.DeclarativeValidationConfig {
	return rest.DeclarativeValidationConfig{}
}

// MetadataGuard refuses objects with more mistakes in their metadata than an answer has. Barque's
// own resources have BoundedMistakes; custom resources, their definitions and APIServices have the
// strategies of libraries, which admission comes before.
type MetadataGuard struct{}

var _ admission.MutationInterface = MetadataGuard{}

// Handles implements admission.Interface.
func (MetadataGuard) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.MutationInterface.
func (MetadataGuard) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	m, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil // an object without metadata has no mistakes in them
	}
	if len(m.GetLabels())+len(m.GetAnnotations())+len(m.GetFinalizers())+len(m.GetOwnerReferences())+
		len(m.GetManagedFields()) <= mostMistakes {
		return nil
	}
	anyName := func(string, bool) []string { return nil }
	mistakes := apivalidation.ValidateObjectMetaAccessor(m, a.GetNamespace() != "", anyName, field.NewPath("metadata"))
	if len(mistakes) <= mostMistakes {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), bounded(mistakes))
}

// bounded returns the first mistakes, one at least, and the number of those that are left out.
func bounded(mistakes field.ErrorList) field.ErrorList {
	text := 0
	for i, m := range mistakes {
		text += len(m.Field) + len(m.ErrorBody())
		if i > 0 && text > mostMistakesText || i == mostMistakes {
			return append(mistakes[:i:i], &field.Error{
				Type: field.ErrorTypeTooMany, Field: m.Field, BadValue: len(mistakes),
				Detail: "mistakes: this one and those after it are left out",
			})
		}
	}
	return mistakes
}
