package protection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	podutil "github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// NewClaims makes the controller of claims. It asks the factory for the informers that it needs.
func NewClaims(cfg Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	list, pods := core.PersistentVolumeClaims().Lister(), core.Pods().Lister()
	podInformer := core.Pods().Informer()
	return newController(cfg, kind[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]{
		name: "pvcprotection", finalizer: "kubernetes.io/pvc-protection",
		informer: core.PersistentVolumeClaims().Informer(),
		get: func(key runtime.Key) (*corev1.PersistentVolumeClaim, error) {
			return list.PersistentVolumeClaims(key.Namespace).Get(key.Name)
		},
		used: func(
			ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim,
		) (bool, error) {
			known, err := pods.Pods(claim.Namespace).List(labels.Everything())
			if err != nil || slices.ContainsFunc(known, func(p *corev1.Pod) bool { return uses(p, claim) }) {
				return true, err
			}
			all, err := client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return true, fmt.Errorf("listing the pods of namespace %s: %w", claim.Namespace, err)
			}
			return slices.ContainsFunc(all.Items, func(p corev1.Pod) bool { return uses(&p, claim) }), nil
		},
		update: func(
			ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim,
		) (*corev1.PersistentVolumeClaim, error) {
			return client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
		},
		watch: func(loop *runtime.Loop) {
			runtime.Watch(loop, podInformer, func(old, now *corev1.Pod) []runtime.Key {
				if old == nil || now != nil && now.UID == old.UID && !shutDown(now) {
					return nil
				}
				return claimsOf(old)
			})
		},
	}), nil
}

// shutDown reports whether a terminating pod has no grace left, because its kubelet has ended it.
func shutDown(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// uses reports whether a pod with a node uses a claim. A claim made for a pod (ephemeral) is not in
// use after its end.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return pod.Spec.NodeName != "" && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return podutil.ClaimName(pod, &v) == claim.Name &&
			(v.Ephemeral == nil || !shutDown(pod) && metav1.IsControlledBy(claim, pod))
	})
}

// NewVolumes makes the controller of volumes. It asks the factory for the informers that it needs.
func NewVolumes(cfg Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	list := core.PersistentVolumes().Lister()
	return newController(cfg, kind[corev1.PersistentVolume, *corev1.PersistentVolume]{
		name: "pvprotection", finalizer: "kubernetes.io/pv-protection", informer: core.PersistentVolumes().Informer(),
		get: func(key runtime.Key) (*corev1.PersistentVolume, error) { return list.Get(key.Name) },
		used: func(_ context.Context, _ kubernetes.Interface, volume *corev1.PersistentVolume) (bool, error) {
			return volume.Status.Phase == corev1.VolumeBound, nil
		},
		update: func(
			ctx context.Context, client kubernetes.Interface, volume *corev1.PersistentVolume,
		) (*corev1.PersistentVolume, error) {
			return client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{})
		},
		watch: func(*runtime.Loop) {},
	}), nil
}

// NewClasses makes the controller of classes of volume attributes. It asks the factory for the
// informers that it needs.
func NewClasses(cfg Config) (*Controller, error) {
	core, classes := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1().VolumeAttributesClasses()
	list, claims, volumes := classes.Lister(), core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister()
	claimInformer, volumeInformer := core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer()
	return newController(cfg, kind[storagev1.VolumeAttributesClass, *storagev1.VolumeAttributesClass]{
		name: "vacprotection", finalizer: "kubernetes.io/vac-protection", informer: classes.Informer(),
		get: func(key runtime.Key) (*storagev1.VolumeAttributesClass, error) { return list.Get(key.Name) },
		used: func(_ context.Context, _ kubernetes.Interface, class *storagev1.VolumeAttributesClass) (bool, error) {
			all, err := volumes.List(labels.Everything())
			if err != nil ||
				slices.ContainsFunc(all,
					func(v *corev1.PersistentVolume) bool { return classesOfVolume(v).Has(class.Name) }) {
				return true, err
			}
			named, err := claims.List(labels.Everything())
			return err != nil ||
				slices.ContainsFunc(named,
					func(c *corev1.PersistentVolumeClaim) bool { return classesOfClaim(c).Has(class.Name) }), err
		},
		update: func(
			ctx context.Context, client kubernetes.Interface, class *storagev1.VolumeAttributesClass,
		) (*storagev1.VolumeAttributesClass, error) {
			return client.StorageV1().VolumeAttributesClasses().Update(ctx, class, metav1.UpdateOptions{})
		},
		watch: func(loop *runtime.Loop) {
			runtime.Watch(loop, claimInformer, func(old, now *corev1.PersistentVolumeClaim) []runtime.Key {
				return left(classesOfClaim(old), classesOfClaim(now))
			})
			runtime.Watch(loop, volumeInformer, func(old, now *corev1.PersistentVolume) []runtime.Key {
				return left(classesOfVolume(old), classesOfVolume(now))
			})
		},
	}), nil
}

// left are the classes that an object named, and does not any more.
func left(was, is sets.Set[string]) []runtime.Key {
	var keys []runtime.Key
	for _, name := range sets.List(was.Difference(is)) {
		keys = append(keys, runtime.Key{Name: name})
	}
	return keys
}

func classesOfClaim(c *corev1.PersistentVolumeClaim) sets.Set[string] {
	names := sets.New[string]()
	if c != nil {
		names.Insert(ptr.Deref(c.Spec.VolumeAttributesClassName, ""),
			ptr.Deref(c.Status.CurrentVolumeAttributesClassName, ""))
		if m := c.Status.ModifyVolumeStatus; m != nil {
			names.Insert(m.TargetVolumeAttributesClassName)
		}
	}
	return names.Delete("")
}

func classesOfVolume(v *corev1.PersistentVolume) sets.Set[string] {
	names := sets.New[string]()
	if v != nil {
		names.Insert(ptr.Deref(v.Spec.VolumeAttributesClassName, ""))
	}
	return names.Delete("")
}
