package nodeauth

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/resource"
)

// Pods is the storage of pods as nodes see it: a node that lists or watches the pods of all nodes
// gets of each only the fields that network policies use (PolicyView), and a single pod only if it
// is its own.
type Pods struct{ *resource.Storage }

// NewPods returns that storage.
func NewPods(storage *resource.Storage) rest.Storage { return &Pods{storage} }

// List implements rest.Lister.
func (p *Pods) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if !isPolicyView(ctx, options) {
		return p.ListEncoded(ctx, options)
	}
	list, err := p.Storage.List(ctx, options)
	if err != nil {
		return nil, err
	}
	pods, ok := list.(*corev1.PodList)
	if !ok {
		return list, nil
	}
	trimmed := &corev1.PodList{TypeMeta: pods.TypeMeta, ListMeta: pods.ListMeta,
		Items: make([]corev1.Pod, len(pods.Items))}
	for i := range pods.Items {
		trimmed.Items[i] = *PolicyView(&pods.Items[i])
	}
	return trimmed, nil
}

// Get implements rest.Getter. A node gets its own pods only. The authorizer decides by an informer,
// which may not know a pod yet; the object itself says on which node it is.
func (p *Pods) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	got, err := p.Storage.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	if err := forNode(ctx, name, got); err != nil {
		return nil, err
	}
	return got, nil
}

// forNode returns an error if a node requests an object that is not one of its pods.
func forNode(ctx context.Context, name string, got runtime.Object) error {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil
	}
	node, ok := NodeOf(who)
	if !ok {
		return nil
	}
	if pod, ok := got.(*corev1.Pod); ok && pod.Spec.NodeName == node {
		return nil
	}
	return apierrors.NewForbidden(corev1.Resource("pods"), name, fmt.Errorf("node %s: %s", node, ownPodsOnly))
}

// Watch implements rest.Watcher.
func (p *Pods) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if !isPolicyView(ctx, options) {
		return p.WatchGathered(ctx, options)
	}
	w, err := p.Storage.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(event watch.Event) (watch.Event, bool) { return viewed(event), true }), nil
}

// viewed returns an event with the node's view of its object. A shared object is never passed on,
// not even when it cannot be read: it would be sent as it is stored.
func viewed(event watch.Event) watch.Event {
	if shared, ok := event.Object.(runtime.CacheableObject); ok {
		event.Object = shared.GetObject()
	}
	if pod, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Bookmark {
		event.Object = PolicyView(pod)
	}
	return event
}

// isPolicyView reports whether a node requests more than its own pods.
func isPolicyView(ctx context.Context, options *internalversion.ListOptions) bool {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return false
	}
	node, ok := NodeOf(who)
	if !ok {
		return false
	}
	var selector fields.Selector
	if options != nil {
		selector = options.FieldSelector
	}
	return selector == nil || !selects(selector.Requirements(), "spec.nodeName", node)
}

// PolicyView returns the fields of a pod that network policies use: its owner, labels, addresses,
// named ports, and whether it has ended. It shares memory with the pod.
func PolicyView(pod *corev1.Pod) *corev1.Pod {
	view := &corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, Labels: pod.Labels,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork,
			InitContainers: portsOf(pod.Spec.InitContainers), Containers: portsOf(pod.Spec.Containers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs},
	}
	return view
}

// portsOf keeps of containers those with named ports, and of them nothing else.
func portsOf(containers []corev1.Container) []corev1.Container {
	var kept []corev1.Container
	for i := range containers {
		var named []corev1.ContainerPort
		for _, port := range containers[i].Ports {
			if port.Name != "" {
				named = append(named,
					corev1.ContainerPort{Name: port.Name, ContainerPort: port.ContainerPort, Protocol: port.Protocol})
			}
		}
		if len(named) > 0 {
			kept = append(kept,
				corev1.Container{Name: containers[i].Name, Ports: named, RestartPolicy: containers[i].RestartPolicy})
		}
	}
	return kept
}
