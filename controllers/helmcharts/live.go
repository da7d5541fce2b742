package helmcharts

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// objects is the API as the controller writes to it, beside Helm.
type objects interface {
	// SetFinalizers sets those of a HelmChart unless it has changed, and returns the
	// resourceVersion.
	SetFinalizers(ctx context.Context, u *unstructured.Unstructured, finalizers []string) (string, error)
	// WriteStatus writes the status of a HelmChart, and returns the resourceVersion.
	WriteStatus(ctx context.Context, o *Object, status Status) (string, error)
	// ConfigMap returns the texts of a ConfigMap, by the order of their keys.
	ConfigMap(ctx context.Context, namespace, name string) ([]string, error)
}

type liveObjects struct {
	client kubernetes.Interface
	charts dynamic.NamespaceableResourceInterface
}

func newObjects(client kubernetes.Interface, config *rest.Config) (objects, error) {
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return liveObjects{client, d.Resource(Resource)}, nil
}

var patchOptions = metav1.PatchOptions{FieldManager: "barque-helmcharts"}

func (l liveObjects) SetFinalizers(
	ctx context.Context, u *unstructured.Unstructured, finalizers []string,
) (string, error) {
	if finalizers == nil {
		finalizers = []string{}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": u.GetUID(), "resourceVersion": u.GetResourceVersion(), "finalizers": finalizers}})
	if err != nil {
		return "", err
	}
	now, err := l.charts.Namespace(u.GetNamespace()).Patch(ctx, u.GetName(), types.MergePatchType, patch, patchOptions)
	if err != nil {
		return "", err
	}
	return now.GetResourceVersion(), nil
}

func (l liveObjects) WriteStatus(ctx context.Context, o *Object, status Status) (string, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID},
		"status": map[string]any{"conditions": status.Conditions}})
	if err != nil {
		return "", err
	}
	now, err := l.charts.Namespace(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, patch, patchOptions, "status")
	if err != nil {
		return "", err
	}
	return now.GetResourceVersion(), nil
}

func (l liveObjects) ConfigMap(ctx context.Context, namespace, name string) ([]string, error) {
	m, err := l.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		out = append(out, m.Data[key])
	}
	return out, nil
}
