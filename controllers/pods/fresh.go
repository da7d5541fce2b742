package pods

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/runtime"
)

// Fresh knows, for one term, for which owners the informers have been compared with the API server.
type Fresh struct{ seen runtime.Seen }

// Forget drops what is known of an owner that is gone.
func (f *Fresh) Forget(owner types.UID) { f.seen.Forget(owner) }

// Behind reports whether an owner, or its pods, are shown as they were, not as the API server has them: as a leader before
// has left them a moment ago. A pod may be missing, older, or gone. shown are the pods that a decision has been made for:
// what the informer has learned since is of no use to it. Behind asks the server once for each owner, until the answer is no;
// afterwards it is no without asking. A controller asks before its first act for an owner in a term: it would create pods
// once more, or choose other victims than those which are going.
func (f *Fresh) Behind(ctx context.Context, client kubernetes.Interface, owner claim.Owner, shown []*corev1.Pod) (bool, error) {
	return behind(ctx, f, owner, shown, func(selector metav1.ListOptions) ([]*corev1.Pod, error) {
		list, err := client.CoreV1().Pods(owner.GetNamespace()).List(ctx, selector)
		if err != nil {
			return nil, err
		}
		return pointers(list.Items), nil
	})
}

// BehindSets is Behind for a Deployment and its ReplicaSets: by the template of before it would roll back.
func (f *Fresh) BehindSets(ctx context.Context, client kubernetes.Interface, owner claim.Owner, shown []*appsv1.ReplicaSet) (bool, error) {
	return behind(ctx, f, owner, shown, func(selector metav1.ListOptions) ([]*appsv1.ReplicaSet, error) {
		list, err := client.AppsV1().ReplicaSets(owner.GetNamespace()).List(ctx, selector)
		if err != nil {
			return nil, err
		}
		return pointers(list.Items), nil
	})
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

func behind[T metav1.Object](ctx context.Context, f *Fresh, owner claim.Owner, shown []T, list func(metav1.ListOptions) ([]T, error)) (bool, error) {
	if f.seen.Has(owner.GetUID()) {
		return false, nil
	}
	now, err := owner.Read(ctx)
	if err == nil && now.GetResourceVersion() != owner.GetResourceVersion() || apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	live, err := list(metav1.ListOptions{LabelSelector: owner.Selector.String()})
	if err != nil {
		return false, fmt.Errorf("reading what belongs to %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	known := make(map[types.UID]T, len(shown))
	for _, obj := range shown {
		known[obj.GetUID()] = obj
	}
	for _, obj := range live {
		if !metav1.IsControlledBy(obj, owner) || owner.May != nil && !owner.May(obj) {
			continue
		}
		if was, ok := known[obj.GetUID()]; !ok || older(was, obj) {
			return true, nil
		}
		delete(known, obj.GetUID())
	}
	if len(known) > 0 {
		return true, nil
	}
	f.seen.Note(owner.GetUID())
	return false, nil
}

// older reports whether an object is of before another version of it.
func older(shown, live metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(shown.GetResourceVersion(), live.GetResourceVersion())
	return err == nil && order < 0
}
