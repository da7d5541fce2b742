package volumes

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/scheduler/plugins/helper"
)

// skipped is the answer of a PreFilter that has nothing to filter.
var skipped = fwk.NewStatus(fwk.Skip)

// forEachClaim calls fn with the name of each claim of a pod, until fn returns false. ofPod means
// that the claim is made for the pod (an ephemeral volume).
func forEachClaim(pod *v1.Pod, fn func(name string, ofPod bool) bool) {
	for i := range pod.Spec.Volumes {
		v, more := &pod.Spec.Volumes[i], true
		switch {
		case v.PersistentVolumeClaim != nil:
			more = fn(v.PersistentVolumeClaim.ClaimName, false)
		case v.Ephemeral != nil:
			more = fn(ephemeral.VolumeClaimName(pod, v), true)
		}
		if !more {
			return
		}
	}
}

// usesClaims reports whether a pod uses any claim. Nearly no pod does.
func usesClaims(pod *v1.Pod) (found bool) {
	forEachClaim(pod, func(string, bool) bool { found = true; return false })
	return found
}

// usesClaim reports whether a pod uses a claim.
func usesClaim(pod *v1.Pod, claim *v1.PersistentVolumeClaim) (found bool) {
	if pod.Namespace != claim.Namespace {
		return false
	}
	forEachClaim(pod, func(name string, _ bool) bool { found = name == claim.Name; return !found })
	return found
}

// hintOnClaim queues the pods that use a claim which has changed.
func hintOnClaim(_ klog.Logger, pod *v1.Pod, _, now any) (fwk.QueueingHint, error) {
	claim, ok := now.(*v1.PersistentVolumeClaim)
	return helper.HintIf(!ok || usesClaim(pod, claim))
}

// asStatus returns the status for a lister's error: a missing object may be created later.
func asStatus(err error) *fwk.Status {
	if apierrors.IsNotFound(err) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	return fwk.AsStatus(err)
}

// waitsForConsumer reports whether claims of a class get their volumes with their pods.
func waitsForConsumer(class *storagev1.StorageClass) bool {
	return ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
}

func fullyBound(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, storage.AnnBindCompleted)
}

// assumed reads from an informer and adds decisions that are not written yet. An assumption ends
// when the informer shows a newer object, from any writer. It is safe for concurrent use.
type assumed[T any, P interface {
	*T
	metav1.Object
}] struct {
	informer cache.SharedIndexInformer
	mu       sync.Mutex
	objects  map[string]P
}

func newAssumed[T any, P interface {
	*T
	metav1.Object
}](informer cache.SharedIndexInformer) *assumed[T, P] {
	return &assumed[T, P]{informer: informer, objects: map[string]P{}}
}

// get returns an object, nil when it is not there.
func (a *assumed[T, P]) get(key string) P {
	known := a.known(key)
	if known == nil {
		return nil
	}
	return a.over(key, known)
}

// known returns an object as the informer shows it.
func (a *assumed[T, P]) known(key string) P {
	obj, exists, err := a.informer.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	known, _ := obj.(P)
	return known
}

func (a *assumed[T, P]) over(key string, known P) P {
	a.mu.Lock()
	defer a.mu.Unlock()
	mine, ok := a.objects[key]
	if !ok {
		return known
	}
	if mine.GetUID() == known.GetUID() && !newer(known, mine) {
		return mine
	}
	delete(a.objects, key)
	return known
}

// newer reports whether a has a later version than b.
func newer(a, b metav1.Object) bool {
	c, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && c > 0
}

// assume notes an object as it is going to be written. It fails when it was made of an older one.
func (a *assumed[T, P]) assume(obj P) error {
	key := keyOf(obj)
	if is := a.get(key); is == nil || is.GetUID() != obj.GetUID() || newer(is, obj) {
		return fmt.Errorf("%s has changed meanwhile", key)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects[key] = obj
	return nil
}

// forget ends the assumption of this very object. One that was written ends by itself.
func (a *assumed[T, P]) forget(obj P) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if key := keyOf(obj); a.objects[key] == obj {
		delete(a.objects, key)
	}
}

func keyOf(obj metav1.Object) string {
	return cache.MetaObjectToName(obj).String()
}

// volumesByClass is the index of volumes by their class.
const volumesByClass = "scheduler/class"

// indexByClass makes an informer of volumes have that index.
func indexByClass(informer cache.SharedIndexInformer) error {
	if _, exists := informer.GetIndexer().GetIndexers()[volumesByClass]; exists {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{volumesByClass: func(obj any) ([]string, error) {
		if v, ok := obj.(*v1.PersistentVolume); ok {
			return []string{storage.GetPersistentVolumeClass(v)}, nil
		}
		return nil, nil
	}})
}
