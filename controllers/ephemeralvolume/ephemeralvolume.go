// Package ephemeralvolume creates the PersistentVolumeClaims of generic ephemeral volumes: one for
// each such volume of a pod, which owns it. The garbage collector deletes them with the pod.
package ephemeralvolume

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/barque/barque/controllers/runtime"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many pods are worked on at once. Default 5.
	Workers int
}

// Controller creates claims.
type Controller struct {
	cfg        Config
	pods       cache.SharedIndexInformer
	claims     cache.SharedIndexInformer
	listPods   corelisters.PodLister
	listClaims corelisters.PersistentVolumeClaimLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{
		cfg: cfg, pods: core.Pods().Informer(), claims: core.PersistentVolumeClaims().Informer(),
		listPods: core.Pods().Lister(), listClaims: core.PersistentVolumeClaims().Lister(),
	}
	return c, runtime.EnsureIndex(c.pods, byClaim, func(obj any) ([]string, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, nil
		}
		var claims []string
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil {
				claims = append(claims, pod.Namespace+"/"+ephemeral.VolumeClaimName(pod, v))
			}
		}
		return claims, nil
	})
}

// byClaim is the index of pods by the claims of their ephemeral volumes.
const byClaim = "barque/ephemeral-claim"

// Run creates for one term of leadership. The keys are pods.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "ephemeral_volume")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder}
	t.loop = runtime.NewLoop("ephemeralvolume", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.pods, func(_, now *corev1.Pod) []runtime.Key { return concerned(now) })
	// A claim that is deleted under its pod is made again. Another owner's claim may have blocked
	// its name.
	runtime.Watch(t.loop, c.claims, func(old, now *corev1.PersistentVolumeClaim) []runtime.Key {
		if now != nil {
			return nil
		}
		pods, err := runtime.ByIndex[corev1.Pod](c.pods, byClaim, runtime.KeyOf(old).String())
		if err != nil {
			return nil
		}
		var keys []runtime.Key
		for _, pod := range pods {
			keys = append(keys, concerned(pod)...)
		}
		return keys
	})
	return t.loop.Run(ctx)
}

// concerned returns the key of a pod that has an ephemeral volume and stays.
func concerned(pod *corev1.Pod) []runtime.Key {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return []runtime.Key{runtime.KeyOf(pod)}
		}
	}
	return nil
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	pod, err := t.listPods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	find := func(name string) (*corev1.PersistentVolumeClaim, error) {
		claim, err := t.listClaims.PersistentVolumeClaims(pod.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return claim, err
	}
	missing, volume, err := decide(pod, find)
	for _, claim := range missing {
		now, failed := t.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, claim.object,
			metav1.CreateOptions{})
		switch {
		case apierrors.HasStatusCause(failed, corev1.NamespaceTerminatingCause):
			return 0, nil // it takes the pod with it
		case failed != nil:
			return 0, t.tell(ctx, key, pod, claim.volume, fmt.Errorf("create PVC %s: %w", claim.object.Name, failed))
		}
		t.loop.Writes().Wrote(key, t.claims, now.ResourceVersion)
	}
	if err != nil {
		return 0, t.tell(ctx, key, pod, volume, err)
	}
	return 0, nil
}

// tell writes an event with the reason why a volume has no claim, and returns that as an error.
func (t *term) tell(ctx context.Context, key runtime.Key, pod *corev1.Pod, volume string, err error) error {
	if ctx.Err() == nil {
		t.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", volume, err)
	}
	return fmt.Errorf("pod %s, ephemeral volume %s: %w", key, volume, err)
}

// missing is a claim to create for a volume.
type missing struct {
	volume string
	object *corev1.PersistentVolumeClaim
}

// decide returns the missing claims of a pod, up to the first volume whose claim is another
// owner's: that volume, and why. find returns nil for a claim that does not exist.
func decide(
	pod *corev1.Pod, find func(name string) (*corev1.PersistentVolumeClaim, error),
) (create []missing, volume string, err error) {
	if pod.DeletionTimestamp != nil {
		return nil, "", nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		name := ephemeral.VolumeClaimName(pod, v)
		there, err := find(name)
		if err == nil && there != nil {
			err = ephemeral.VolumeIsForPod(pod, there)
		}
		if err != nil {
			return create, v.Name, err
		}
		if there != nil {
			continue
		}
		template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
		create = append(create, missing{v.Name, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: name, Labels: template.Labels, Annotations: template.Annotations,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, podKind)},
			},
			Spec: template.Spec,
		}})
	}
	return create, "", nil
}
