package manifests

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// cluster is the API as the controller writes to it.
type cluster interface {
	// Namespaced reports whether the objects of a kind are in namespaces. It fails for a kind that
	// the API does not have.
	Namespaced(kind schema.GroupVersionKind) (bool, error)
	// Apply applies an object by server-side apply.
	Apply(ctx context.Context, u *unstructured.Unstructured) error
	// Prune deletes an object if it was applied for this Manifest last.
	Prune(ctx context.Context, r Ref, manifest string) error
	// WriteStatus writes the status of a Manifest, and returns the resourceVersion.
	WriteStatus(ctx context.Context, o *Object) (string, error)
	// DropSources removes sources from a Manifest, and returns the resourceVersion.
	DropSources(ctx context.Context, u *unstructured.Unstructured, sources []Source) (string, error)
	// Delete deletes a Manifest unless it has changed.
	Delete(ctx context.Context, u *unstructured.Unstructured) error
	// DeleteContent deletes the Secret of a content.
	DeleteContent(ctx context.Context, s *corev1.Secret) error
}

// liveCluster is the API of this cluster.
type liveCluster struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

func newCluster(client kubernetes.Interface, config *rest.Config) (cluster, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &liveCluster{client: client, dynamic: objects,
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))}, nil
}

func (c *liveCluster) mapping(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	m, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset() // a definition may be new
		m, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	return m, err
}

func (c *liveCluster) Namespaced(kind schema.GroupVersionKind) (bool, error) {
	m, err := c.mapping(kind)
	return err == nil && m.Scope.Name() == meta.RESTScopeNameNamespace, err
}

// at returns the way to the objects of a kind in a namespace.
func (c *liveCluster) at(kind schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	m, err := c.mapping(kind)
	if err != nil {
		return nil, err
	}
	return c.dynamic.Resource(m.Resource).Namespace(namespace), nil
}

func (c *liveCluster) Apply(ctx context.Context, u *unstructured.Unstructured) error {
	objects, err := c.at(u.GroupVersionKind(), u.GetNamespace())
	if err != nil {
		return err
	}
	_, err = objects.Apply(ctx, u.GetName(), u, applyOptions)
	return err
}

func (c *liveCluster) Prune(ctx context.Context, r Ref, manifest string) error {
	objects, err := c.at(schema.FromAPIVersionAndKind(r.APIVersion, r.Kind), r.Namespace)
	if meta.IsNoMatchError(err) {
		return nil // its definition has gone, and it with it
	}
	if err != nil {
		return err
	}
	live, err := objects.Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	annotations := live.GetAnnotations()
	if annotations[Owner] != manifest || annotations[Prune] == "false" || live.GetDeletionTimestamp() != nil {
		return nil
	}
	err = objects.Delete(ctx, r.Name, asRead(live.GetUID(), live.GetResourceVersion()))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *liveCluster) manifests() dynamic.ResourceInterface { return c.dynamic.Resource(Resource) }

func (c *liveCluster) WriteStatus(ctx context.Context, o *Object) (string, error) {
	patch, err := patchStatus(o)
	if err != nil {
		return "", err
	}
	u, err := c.manifests().Patch(ctx, o.Name, types.MergePatchType, patch, statusOptions, "status")
	if err != nil {
		return "", err
	}
	return u.GetResourceVersion(), nil
}

func (c *liveCluster) DropSources(
	ctx context.Context, u *unstructured.Unstructured, sources []Source,
) (string, error) {
	o, err := Read(u)
	if err != nil {
		return "", err
	}
	o.Spec.Sources = slices.DeleteFunc(o.Spec.Sources, func(s Source) bool { return slices.Contains(sources, s) })
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return "", err
	}
	now, err := c.manifests().Update(ctx, &unstructured.Unstructured{Object: fields}, metav1.UpdateOptions{})
	if err != nil {
		return "", err
	}
	return now.GetResourceVersion(), nil
}

func (c *liveCluster) Delete(ctx context.Context, u *unstructured.Unstructured) error {
	err := c.manifests().Delete(ctx, u.GetName(), preconditions(u))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *liveCluster) DeleteContent(ctx context.Context, s *corev1.Secret) error {
	err := c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, preconditions(s))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
