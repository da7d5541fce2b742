package convert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
)

// FromCluster reads the Ingresses and Services of a namespace, or of all with "".
func FromCluster(ctx context.Context, client kubernetes.Interface, namespace string) (Input, error) {
	in := Input{Services: map[types.NamespacedName]*corev1.Service{}, Complete: true}
	ingresses, err := client.NetworkingV1().Ingresses(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return in, fmt.Errorf("list Ingresses: %w", err)
	}
	services, err := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return in, fmt.Errorf("list Services: %w", err)
	}
	for i := range ingresses.Items {
		in.Ingresses = append(in.Ingresses, &ingresses.Items[i])
	}
	for i := range services.Items {
		in.add(&services.Items[i])
	}
	return in, nil
}

func (in *Input) add(s *corev1.Service) {
	in.Services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
}

// Read adds the Ingresses and Services among the objects of a stream of YAML or JSON. Objects
// without a namespace get the given one.
func (in *Input) Read(from io.Reader, namespace string) error {
	if in.Services == nil {
		in.Services = map[types.NamespacedName]*corev1.Service{}
	}
	decoder := yaml.NewYAMLOrJSONDecoder(from, 4096)
	for n := 1; ; n++ {
		var raw runtime.RawExtension
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
		if raw.Raw = bytes.TrimSpace(raw.Raw); len(raw.Raw) == 0 || string(raw.Raw) == "null" {
			continue // nothing between two lines of ---
		}
		obj, _, err := unstructured.UnstructuredJSONScheme.Decode(raw.Raw, nil, nil)
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
		if err := in.take(obj, namespace); err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

func (in *Input) take(obj runtime.Object, namespace string) error {
	if list, ok := obj.(*unstructured.UnstructuredList); ok {
		for i := range list.Items {
			if err := in.take(&list.Items[i], namespace); err != nil {
				return err
			}
		}
		return nil
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	if u.GetNamespace() == "" {
		u.SetNamespace(namespace)
	}
	switch {
	case u.GetAPIVersion() == "v1" && u.GetKind() == "Service":
		s := new(corev1.Service)
		if err := typed(u, s); err != nil {
			return err
		}
		in.add(s)
	case u.GetAPIVersion() == networkingv1.SchemeGroupVersion.String() && u.GetKind() == "Ingress":
		i := new(networkingv1.Ingress)
		if err := typed(u, i); err != nil {
			return err
		}
		in.Ingresses = append(in.Ingresses, i)
	case u.GetKind() == "Ingress" && (u.GroupVersionKind().Group == "extensions" ||
		u.GroupVersionKind().Group == networkingv1.GroupName):
		return fmt.Errorf("the Ingress %s is of %s, which Kubernetes does not serve any more; want %s", u.GetName(),
			u.GetAPIVersion(), networkingv1.SchemeGroupVersion)
	}
	return nil // charts have objects of many kinds
}

func typed(u *unstructured.Unstructured, to any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, to, true); err != nil {
		return fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// OfClass keeps the Ingresses of a class, by its field or by the older annotation.
func (in *Input) OfClass(name string) {
	var kept []*networkingv1.Ingress
	for _, i := range in.Ingresses {
		class := i.Annotations["kubernetes.io/ingress.class"]
		if i.Spec.IngressClassName != nil {
			class = *i.Spec.IngressClassName
		}
		if class == name {
			kept = append(kept, i)
		}
	}
	in.Ingresses = kept
}
