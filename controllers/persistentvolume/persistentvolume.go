package persistentvolume

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	storage "k8s.io/component-helpers/storage/volume"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// resync is how often claims and volumes that wait are looked at although nothing has happened.
const resync = 15 * time.Second

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// RemoveAll deletes a directory of this host. Default os.RemoveAll.
	RemoveAll func(path string) error
}

// Controller binds claims to volumes.
type Controller struct {
	cfg         Config
	claims      cache.SharedIndexInformer
	volumes     cache.SharedIndexInformer
	pods        cache.SharedIndexInformer
	classes     cache.SharedIndexInformer
	listClasses storagelisters.StorageClassLister
}

// Names of the indexes.
const (
	// freeBy has volumes: under the claim that they name, or else under their class.
	freeBy = "barque/volume-for"
	// wantBy has claims that are not bound: under the volume that they name, or else under their
	// class.
	wantBy = "barque/claim-for"
)

// The two kinds of values in the indexes. A name has no space.
func ofClass(name string) string            { return "class " + name }
func ofClaim(namespace, name string) string { return "claim " + namespace + "/" + name }
func ofVolume(name string) string           { return "volume " + name }
func isBound(c *corev1.PersistentVolumeClaim) bool {
	return metav1.HasAnnotation(c.ObjectMeta, storage.AnnBindCompleted)
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.RemoveAll == nil {
		cfg.RemoveAll = os.RemoveAll
	}
	core, classes := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1().StorageClasses()
	c := &Controller{
		cfg:    cfg,
		claims: core.PersistentVolumeClaims().Informer(), volumes: core.PersistentVolumes().Informer(),
		pods: core.Pods().Informer(), classes: classes.Informer(), listClasses: classes.Lister(),
	}
	if err := pods.EnsureClaimIndex(c.pods); err != nil {
		return nil, err
	}
	if err := runtime.EnsureIndex(c.volumes, freeBy, func(obj any) ([]string, error) {
		v, ok := obj.(*corev1.PersistentVolume)
		switch {
		case !ok:
			return nil, nil
		case v.Spec.ClaimRef != nil:
			return []string{ofClaim(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)}, nil
		}
		return []string{ofClass(storage.GetPersistentVolumeClass(v))}, nil
	}); err != nil {
		return nil, err
	}
	return c, runtime.EnsureIndex(c.claims, wantBy, func(obj any) ([]string, error) {
		claim, ok := obj.(*corev1.PersistentVolumeClaim)
		switch {
		case !ok:
			return nil, nil
		case claim.Spec.VolumeName != "":
			return []string{ofVolume(claim.Spec.VolumeName)}, nil
		case isBound(claim):
			return nil, nil
		}
		return []string{ofClass(storage.GetPersistentVolumeClaimClass(claim))}, nil
	})
}

// Run binds for one term of leadership. Keys with a namespace are claims, the others volumes.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "persistentvolume-controller")
	defer stop()
	t := &term{
		Controller: c, client: client, recorder: recorder,
		volumes: newest[corev1.PersistentVolume, *corev1.PersistentVolume]{c.volumes,
			map[runtime.Key]*corev1.PersistentVolume{}},
		claims: newest[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]{c.claims,
			map[runtime.Key]*corev1.PersistentVolumeClaim{}},
		told: map[runtime.Key]told{},
	}
	loop := runtime.NewLoop("persistentvolume", 1, c.cfg.Logger, t.reconcile)
	runtime.Watch(loop, c.volumes, func(old, now *corev1.PersistentVolume) []runtime.Key {
		keys := runtime.Itself(old, now)
		for _, v := range []*corev1.PersistentVolume{old, now} {
			if v != nil {
				keys = append(keys, c.concerned(v)...)
			}
		}
		return keys
	})
	runtime.Watch(loop, c.claims, func(old, now *corev1.PersistentVolumeClaim) []runtime.Key {
		keys := runtime.Itself(old, now)
		return append(keys,
			keysOf[corev1.PersistentVolume](c.volumes, freeBy, ofClaim(keys[0].Namespace, keys[0].Name))...)
	})
	runtime.Watch(loop, c.classes, func(_, now *storagev1.StorageClass) []runtime.Key {
		if now == nil {
			return nil
		}
		keys := keysOf[corev1.PersistentVolumeClaim](c.claims, wantBy, ofClass(now.Name))
		if isDefault(now) {
			keys = append(keys, keysOf[corev1.PersistentVolumeClaim](c.claims, wantBy, ofClass(""))...)
		}
		return keys
	})
	return loop.Run(ctx)
}

// concerned are the claims that a change of a volume may help.
func (c *Controller) concerned(v *corev1.PersistentVolume) []runtime.Key {
	keys := keysOf[corev1.PersistentVolumeClaim](c.claims, wantBy, ofVolume(v.Name))
	if ref := v.Spec.ClaimRef; ref != nil {
		return append(keys, runtime.Key{Namespace: ref.Namespace, Name: ref.Name})
	}
	if v.Status.Phase == corev1.VolumeAvailable {
		keys = append(keys,
			keysOf[corev1.PersistentVolumeClaim](c.claims, wantBy, ofClass(storage.GetPersistentVolumeClass(v)))...)
	}
	return keys
}

// keysOf returns the keys of an index' objects. The index exists, so that there is no error.
func keysOf[T any, P interface {
	*T
	GetNamespace() string
	GetName() string
}](informer cache.SharedIndexInformer, index, value string) []runtime.Key {
	list, _ := runtime.ByIndex[T](informer, index, value)
	keys := make([]runtime.Key, len(list))
	for i, obj := range list {
		keys[i] = runtime.KeyOf(P(obj))
	}
	return keys
}

// term is the state of one leadership term. Its only worker owns it.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	volumes  newest[corev1.PersistentVolume, *corev1.PersistentVolume]
	claims   newest[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	told     map[runtime.Key]told
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	if key.Namespace != "" {
		return t.reconcileClaim(ctx, key)
	}
	volume, err := t.volumes.get(key)
	if err != nil || volume == nil {
		t.volumes.forget(key)
		delete(t.told, key)
		return 0, err
	}
	claim, err := t.claimOf(ctx, volume)
	if err != nil {
		return 0, err
	}
	return t.act(ctx, decideVolume(volume, claim), claim)
}

func (t *term) reconcileClaim(ctx context.Context, key runtime.Key) (time.Duration, error) {
	claim, err := t.claims.get(key)
	if err != nil || claim == nil {
		t.claims.forget(key)
		delete(t.told, key)
		return 0, err
	}
	v, err := t.view(ctx, claim)
	if err != nil {
		return 0, fmt.Errorf("looking for what concerns claim %s: %w", key, err)
	}
	return t.act(ctx, decideClaim(claim, v), claim)
}

// claimOf returns the claim that a volume names, nil when it is gone. The loss of its claim is
// final for a volume, so the API server is asked about a claim that the informer lacks.
func (t *term) claimOf(ctx context.Context, volume *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return nil, nil
	}
	claim, err := t.claims.get(runtime.Key{Namespace: ref.Namespace, Name: ref.Name})
	if err != nil || claim != nil && claim.UID == ref.UID {
		return claim, err
	}
	claim, err = t.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for claim %s/%s of volume %s: %w", ref.Namespace, ref.Name, volume.Name, err)
	}
	return claim, nil
}

// view gathers the input of a decision about a claim. The loss of its volume is final for a claim,
// so the API server is asked about a volume that the informer lacks.
func (t *term) view(ctx context.Context, claim *corev1.PersistentVolumeClaim) (v claimView, err error) {
	if name := claim.Spec.VolumeName; name != "" {
		v.named, err = t.volumes.get(runtime.Key{Name: name})
		if err != nil || v.named != nil || !isBound(claim) {
			return v, err
		}
		v.named, err = t.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return claimView{}, nil
		}
		return v, err
	}
	if isBound(claim) {
		return v, nil
	}
	class := storage.GetPersistentVolumeClaimClass(claim)
	for _, value := range []string{ofClaim(claim.Namespace, claim.Name), ofClass(class)} {
		more, err := t.volumes.byIndex(freeBy, value)
		if err != nil {
			return v, err
		}
		v.candidates = append(v.candidates, more...)
	}
	if class != "" {
		if v.class, err = t.listClasses.Get(class); err != nil && !apierrors.IsNotFound(err) {
			return v, err
		}
		v.waiting, err = t.waiting(claim)
		return v, err
	}
	all, err := t.listClasses.List(labels.Everything())
	v.standard = standard(all)
	return v, err
}

// waiting names the pods without a node that use a claim.
func (t *term) waiting(claim *corev1.PersistentVolumeClaim) ([]string, error) {
	using, err := pods.OfClaim(t.pods, claim.Namespace, claim.Name)
	var names []string
	for _, p := range using {
		if p.Spec.NodeName == "" && !pods.Finished(p) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names, err
}

// Annotations of a class that claims get which name none. The second one is from before it was
// stable.
const (
	defaultClass     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"
)

func isDefault(class *storagev1.StorageClass) bool {
	return class.Annotations[defaultClass] == "true" || class.Annotations[betaDefaultClass] == "true"
}

// standard returns the newest default class, of equally old ones the first by name.
func standard(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var found *storagev1.StorageClass
	for _, c := range classes {
		if !isDefault(c) {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&c.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < found.Name {
			found = c
		}
	}
	return found
}
