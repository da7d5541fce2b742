package apiserver

import (
	"fmt"
	"reflect"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/subresources"
)

// newScheme registers everything that is served.
func newScheme(resources []resource.Resource) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, r := range resources {
		if err := r.AddToScheme(scheme); err != nil {
			return nil, fmt.Errorf("registering %s: %w", r.GroupVersionResource(), err)
		}
	}
	// The types that subresources read and write besides their parents.
	for _, s := range []struct {
		gv      schema.GroupVersion
		objects []runtime.Object
	}{
		{autoscalingv1.SchemeGroupVersion, []runtime.Object{&autoscalingv1.Scale{}}},
		{policyv1.SchemeGroupVersion, []runtime.Object{&policyv1.Eviction{}}},
		{authenticationv1.SchemeGroupVersion, []runtime.Object{&authenticationv1.TokenRequest{}}},
		{corev1.SchemeGroupVersion, []runtime.Object{&corev1.Binding{}}},
	} {
		scheme.AddKnownTypes(s.gv, s.objects...)
		scheme.AddKnownTypes(schema.GroupVersion{Group: s.gv.Group, Version: runtime.APIVersionInternal}, s.objects...)
		metav1.AddToGroupVersion(scheme, s.gv)
	}
	if err := resource.AddQueryParameters(scheme, corev1.SchemeGroupVersion,
		&corev1.PodLogOptions{}, &corev1.PodExecOptions{}, &corev1.PodAttachOptions{}, &corev1.PodPortForwardOptions{},
		&corev1.PodProxyOptions{}, &corev1.NodeProxyOptions{}, &corev1.ServiceProxyOptions{}); err != nil {
		return nil, err
	}
	if err := subresources.AddOldEviction(scheme); err != nil {
		return nil, err
	}
	if err := addIdentities(scheme); err != nil {
		return nil, err
	}
	return scheme, setPriorities(scheme, resources)
}

// addIdentities lets every type be converted to itself. Webhooks and policies convert objects to
// the version that they were declared for, and back into the one that is being written.
func addIdentities(scheme *runtime.Scheme) error {
	for kind, t := range scheme.AllKnownTypes() {
		if kind.Version != runtime.APIVersionInternal {
			continue
		}
		of := reflect.New(t).Interface()
		if err := scheme.AddConversionFunc(of, of, assign); err != nil {
			return fmt.Errorf("conversion of %s to itself: %w", kind, err)
		}
	}
	return nil
}

// assign makes out equal to in. As every conversion does, it leaves the kind as it is, and shares
// the values of pointers.
func assign(in, out any, _ conversion.Scope) error {
	to := out.(runtime.Object)
	kind := to.GetObjectKind().GroupVersionKind()
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(in).Elem())
	to.GetObjectKind().SetGroupVersionKind(kind)
	return nil
}

// setPriorities makes the version that a group's first declared kind is stored in the preferred
// one, and the others follow in the order in which they are declared.
func setPriorities(scheme *runtime.Scheme, resources []resource.Resource) error {
	versions := map[string][]schema.GroupVersion{}
	for _, r := range resources {
		gv := r.GroupVersionResource().GroupVersion()
		if !slices.Contains(versions[gv.Group], gv) {
			versions[gv.Group] = append(versions[gv.Group], gv)
		}
	}
	for _, list := range versions {
		if err := scheme.SetVersionPriority(list...); err != nil {
			return err
		}
	}
	return nil
}

// newCodecs returns the codecs of the wire: JSON, YAML and protobuf, with lists streamed.
func newCodecs(scheme *runtime.Scheme) serializer.CodecFactory {
	return serializer.NewCodecFactory(scheme,
		serializer.WithStreamingCollectionEncodingToJSON(),
		serializer.WithStreamingCollectionEncodingToProtobuf())
}
