package protection

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// NewUnused makes the controller of the condition Unused, the time since which no pod uses a bound
// claim. A pod that waits for a node uses its claims; a pod that has ended does not. NewUnused
// requests its informers from the factory.
func NewUnused(cfg Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	claims, list, podInformer := core.PersistentVolumeClaims().Informer(), core.PersistentVolumeClaims().Lister(),
		core.Pods().Informer()
	if err := pods.EnsureClaimIndex(podInformer); err != nil {
		return nil, err
	}
	return &Controller{func(ctx context.Context, client kubernetes.Interface) error {
		var loop *runtime.Loop
		loop = runtime.NewLoop("pvcunused", 2, cfg.Logger,
			func(ctx context.Context, key runtime.Key) (time.Duration, error) {
				claim, err := list.PersistentVolumeClaims(key.Namespace).Get(key.Name)
				if apierrors.IsNotFound(err) {
					return 0, nil
				}
				if err != nil {
					return 0, err
				}
				using, err := pods.OfClaim(podInformer, key.Namespace, key.Name)
				if err != nil {
					return 0, err
				}
				condition := unusedCondition(claim, using, metav1.Now())
				if condition == nil {
					return 0, nil
				}
				written, err := patchCondition(ctx, client, claim, condition)
				if written != nil {
					loop.Writes().Wrote(key, claims, written.ResourceVersion)
				}
				return 0, err
			})
		runtime.Watch(loop, claims, func(_, now *corev1.PersistentVolumeClaim) []runtime.Key {
			if now == nil {
				return nil
			}
			return []runtime.Key{runtime.KeyOf(now)}
		})
		runtime.Watch(loop, podInformer, func(old, now *corev1.Pod) []runtime.Key {
			if old != nil && now != nil && old.UID == now.UID && pods.Finished(old) == pods.Finished(now) {
				return nil // its volumes never change
			}
			return append(claimsOf(old), claimsOf(now)...)
		})
		return loop.Run(ctx)
	}}, nil
}

// claimsOf are the claims that a pod names; nil is no pod.
func claimsOf(pod *corev1.Pod) []runtime.Key {
	if pod == nil {
		return nil
	}
	var keys []runtime.Key
	for i := range pod.Spec.Volumes {
		if name := pods.ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, runtime.Key{Namespace: pod.Namespace, Name: name})
		}
	}
	return keys
}

// unusedCondition returns the condition that a claim should get, nil when it is right.
func unusedCondition(
	claim *corev1.PersistentVolumeClaim, using []*corev1.Pod, now metav1.Time,
) *corev1.PersistentVolumeClaimCondition {
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil {
		return nil
	}
	want := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue, LastTransitionTime: now,
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC",
	}
	if slices.ContainsFunc(using, func(p *corev1.Pod) bool { return !pods.Finished(p) }) {
		want.Status, want.Reason, want.Message = corev1.ConditionFalse, "PodUsingPVC",
			"A pod is currently referencing this PVC"
	}
	for _, c := range claim.Status.Conditions {
		if c.Type == want.Type && c.Status == want.Status {
			return nil
		}
	}
	return &want
}

// patchCondition writes one condition of a claim, by its UID. It returns nil when the claim is
// gone.
func patchCondition(
	ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim,
	c *corev1.PersistentVolumeClaimCondition,
) (*corev1.PersistentVolumeClaim, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status":   map[string]any{"conditions": []any{c}},
	})
	if err != nil {
		return nil, err
	}
	written, err := client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil, nil // it is another claim by now
	case err != nil:
		return nil, fmt.Errorf("writing the condition Unused of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return written, nil
}
