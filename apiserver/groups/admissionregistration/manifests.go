package admissionregistration

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/manifest"
	policyloader "k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"
	webhookloader "k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/loader"

	"github.com/barque/barque/apiserver/resource"
)

// ManifestLoaders read webhook configurations and policies from files of a server, with the
// defaults and the rules of the API.
func ManifestLoaders() (*initializer.ManifestLoaders, error) {
	scheme := runtime.NewScheme()
	resources := Resources()
	for _, r := range resources {
		if err := r.AddToScheme(scheme); err != nil {
			return nil, err
		}
	}
	scheme.AddUnversionedTypes(metav1.SchemeGroupVersion, &metav1.List{}, &metav1.Status{})
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	validatingHooks := items[admissionv1.ValidatingWebhookConfiguration](resources)
	mutatingHooks := items[admissionv1.MutatingWebhookConfiguration](resources)
	validating, validatingBindings := items[admissionv1.ValidatingAdmissionPolicy](resources),
		items[admissionv1.ValidatingAdmissionPolicyBinding](resources)
	mutating, mutatingBindings := items[admissionv1.MutatingAdmissionPolicy](resources),
		items[admissionv1.MutatingAdmissionPolicyBinding](resources)
	return &initializer.ManifestLoaders{
		LoadValidatingWebhookManifests: func(
			dir string,
		) ([]*admissionv1.ValidatingWebhookConfiguration, string, error) {
			return webhookloader.LoadManifests(dir, decoder, validatingHooks)
		},
		LoadMutatingWebhookManifests: func(dir string) ([]*admissionv1.MutatingWebhookConfiguration, string, error) {
			return webhookloader.LoadManifests(dir, decoder, mutatingHooks)
		},
		LoadValidatingPolicyManifests: func(
			dir string,
		) ([]*admissionv1.ValidatingAdmissionPolicy, []*admissionv1.ValidatingAdmissionPolicyBinding, string, error) {
			return policyloader.LoadPolicyManifests(dir, decoder, validating, validatingBindings,
				func(b *admissionv1.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
		},
		LoadMutatingPolicyManifests: func(
			dir string,
		) ([]*admissionv1.MutatingAdmissionPolicy, []*admissionv1.MutatingAdmissionPolicyBinding, string, error) {
			return policyloader.LoadPolicyManifests(dir, decoder, mutating, mutatingBindings,
				func(b *admissionv1.MutatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
		},
	}, nil
}

// items takes the objects of a kind out of a decoded object, which may be a list of them.
func items[T any, P interface {
	*T
	metav1.Object
	runtime.Object
}](resources []resource.Resource) func(runtime.Object) ([]P, error) {
	kind := resource.Find[T](resources)
	return func(obj runtime.Object) ([]P, error) {
		objects := []runtime.Object{obj}
		if meta.IsListType(obj) {
			var err error
			if objects, err = meta.ExtractList(obj); err != nil {
				return nil, err
			}
		}
		var list []P
		for _, o := range objects {
			item, ok := o.(P)
			if !ok {
				return nil, fmt.Errorf("%w %T", policyloader.ErrUnrecognizedType, o)
			}
			kind.Default(item)
			// The ending that such names must have is forbidden to objects of the API.
			checked := item.DeepCopyObject().(P)
			checked.SetName(strings.TrimSuffix(item.GetName(), manifest.StaticConfigSuffix))
			if errs := kind.Validate(context.Background(), checked, nil); len(errs) > 0 {
				return nil, fmt.Errorf("%T %q: %w", o, item.GetName(), errs.ToAggregate())
			}
			list = append(list, item)
		}
		return list, nil
	}
}
