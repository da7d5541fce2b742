package pods

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice/util"

	"github.com/barque/barque/controllers/runtime"
)

const byNode = "barque/node"

// EnsureNodeIndex makes OnNode work on an informer of pods.
func EnsureNodeIndex(pods cache.SharedIndexInformer) error {
	return runtime.EnsureIndex(pods, byNode, func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	})
}

// OnNode returns the pods that are bound to a node. They belong to the informer.
func OnNode(pods cache.SharedIndexInformer, node string) ([]*corev1.Pod, error) {
	return runtime.ByIndex[corev1.Pod](pods, byNode, node)
}

// Keys returns the keys of pods.
func Keys(pods []*corev1.Pod) []runtime.Key {
	keys := make([]runtime.Key, len(pods))
	for i, pod := range pods {
		keys[i] = runtime.KeyOf(pod)
	}
	return keys
}

// ServicesOf returns the Services whose endpoints the change of a pod may change; nil is a pod that
// is not there.
func ServicesOf(services corelisters.ServiceLister, old, now *corev1.Pod) []runtime.Key {
	// A typed nil in an interface is not nil to the library.
	var was, is any
	if old != nil {
		was = old
	}
	if now != nil {
		is = now
	}
	names, err := util.GetServicesToUpdate(services, util.GetPodUpdateProjectionKey(was, is))
	if err != nil {
		return nil
	}
	keys := make([]runtime.Key, 0, len(names))
	for name := range names {
		namespace, name, _ := strings.Cut(name, "/")
		keys = append(keys, runtime.Key{Namespace: namespace, Name: name})
	}
	return keys
}

const byClaim = "barque/claim"

// EnsureClaimIndex makes OfClaim work on an informer of pods.
func EnsureClaimIndex(pods cache.SharedIndexInformer) error {
	return runtime.EnsureIndex(pods, byClaim, func(obj any) ([]string, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, nil
		}
		var keys []string
		for i := range pod.Spec.Volumes {
			if name := ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
				keys = append(keys, pod.Namespace+"/"+name)
			}
		}
		return keys, nil
	})
}

// OfClaim returns the pods that name a claim. They belong to the informer.
func OfClaim(pods cache.SharedIndexInformer, namespace, claim string) ([]*corev1.Pod, error) {
	return runtime.ByIndex[corev1.Pod](pods, byClaim, namespace+"/"+claim)
}

// ClaimName names the claim behind a volume of a pod, "" when there is none.
func ClaimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}
