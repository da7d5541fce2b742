package disruption

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
)

// owner is a controller of pods and how many it wants.
type owner struct {
	uid      types.UID
	replicas int32
}

// expected adds up how many pods the controllers of mine want. unmanaged are the pods that have no
// controller: they do not count.
func (t *term) expected(ctx context.Context, mine []*corev1.Pod) (total int32, unmanaged []string, err error) {
	// Always in one order: the first problem goes into the status, and another one each time would
	// cause the next look at once.
	mine = slices.SortedFunc(slices.Values(mine), func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	seen := map[types.UID]bool{}
	counted := map[types.UID]bool{}
	for _, pod := range mine {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			unmanaged = append(unmanaged, pod.Name)
			continue
		}
		if seen[ref.UID] {
			continue
		}
		seen[ref.UID] = true
		o, err := t.ownerOf(ctx, pod.Namespace, ref)
		switch {
		case err != nil:
			return 0, nil, err
		case o == nil:
			return 0, nil, fmt.Errorf("found no controllers for pod %q", pod.Name)
		case !counted[o.uid]: // two ReplicaSets may be of one Deployment
			counted[o.uid] = true
			total += o.replicas
		}
	}
	return total, unmanaged, nil
}

// ownerOf finds the object that sets the number of pods. It uses the informers for kinds that they
// have, and otherwise the kind's scale subresource. It returns nil when the object does not exist.
func (t *term) ownerOf(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*owner, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	if find := t.finders[schema.GroupKind{Group: gv.Group, Kind: ref.Kind}]; find != nil {
		if o := find(namespace, ref); o != nil {
			return o, nil
		}
	}
	return t.scales.of(ctx, namespace, gv, ref)
}

// finder looks a controller up in an informer; nil when it is not there.
type finder func(namespace string, ref *metav1.OwnerReference) *owner

func ownerFrom(obj metav1.Object, err error, replicas func() *int32, ref *metav1.OwnerReference) *owner {
	if err != nil || obj.GetUID() != ref.UID {
		return nil
	}
	o := &owner{uid: obj.GetUID(), replicas: 1}
	if n := replicas(); n != nil {
		o.replicas = *n
	}
	return o
}

// replicaSet finds the Deployment of a ReplicaSet, or the ReplicaSet when it has none.
func (c *Controller) replicaSet(namespace string, ref *metav1.OwnerReference) *owner {
	set, err := c.sets.ReplicaSets(namespace).Get(ref.Name)
	if err != nil || set.UID != ref.UID {
		return nil
	}
	if above := metav1.GetControllerOfNoCopy(set); above != nil && above.Kind == "Deployment" &&
		strings.HasPrefix(above.APIVersion, "apps/") {
		d, err := c.deployments.Deployments(namespace).Get(above.Name)
		if o := ownerFrom(d, err, func() *int32 { return d.Spec.Replicas }, above); o != nil {
			return o
		}
	}
	return ownerFrom(set, nil, func() *int32 { return set.Spec.Replicas }, ref)
}

// scales reads the scale subresource of any kind.
type scales struct {
	discovery discovery.DiscoveryInterfaces

	mu    sync.Mutex
	known map[schema.GroupVersionKind]string // the plural of the kinds that have one
}

// of returns the scale of the object that ref names, nil when there is no such object.
func (s *scales) of(
	ctx context.Context, namespace string, gv schema.GroupVersion, ref *metav1.OwnerReference,
) (*owner, error) {
	plural, err := s.plural(ctx, gv.WithKind(ref.Kind))
	if err != nil {
		return nil, err
	}
	root := path.Join("/apis", gv.Group, gv.Version)
	if gv.Group == "" {
		root = path.Join("/api", gv.Version)
	}
	raw, err := s.discovery.RESTClient().Get().
		AbsPath(root, "namespaces", namespace, plural, ref.Name, "scale").
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		s.forget(gv.WithKind(ref.Kind)) // the object is gone, or its kind has no scale any more
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the scale of %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
	}
	var scale autoscalingv1.Scale
	if err := json.Unmarshal(raw, &scale); err != nil {
		return nil, fmt.Errorf("reading the scale of %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
	}
	if scale.UID != ref.UID {
		return nil, nil
	}
	return &owner{uid: scale.UID, replicas: scale.Spec.Replicas}, nil
}

// plural returns the resource of a kind that has a scale subresource. An error is asked for again
// each time: the subresource may be added.
func (s *scales) plural(ctx context.Context, gvk schema.GroupVersionKind) (string, error) {
	s.mu.Lock()
	plural, known := s.known[gvk]
	s.mu.Unlock()
	if known {
		return plural, nil
	}
	list, err := s.discovery.ServerResourcesForGroupVersionWithContext(ctx, gvk.GroupVersion().String())
	if err != nil {
		return "", fmt.Errorf("looking for resource %s: %w", gvk, err)
	}
	scalable := map[string]bool{}
	for i := range list.APIResources {
		r := &list.APIResources[i]
		if base, isScale := strings.CutSuffix(r.Name, "/scale"); isScale && r.Kind == "Scale" {
			scalable[base] = true
		}
		if r.Kind == gvk.Kind && !strings.Contains(r.Name, "/") {
			plural = r.Name
		}
	}
	switch {
	case plural == "":
		return "", fmt.Errorf("no matches for kind %q in version %q", gvk.Kind, gvk.GroupVersion())
	case !scalable[plural]:
		return "",
			fmt.Errorf("%s does not implement the scale subresource",
				schema.GroupResource{Group: gvk.Group, Resource: plural})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[gvk] = plural
	return plural, nil
}

func (s *scales) forget(gvk schema.GroupVersionKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, gvk)
}
