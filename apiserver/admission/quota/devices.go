package quota

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"

	"github.com/barque/barque/apiserver/groups/validation"
)

// Devices knows under which extended resources the devices of a claim are counted, too, and which
// of them the claim's pod has been charged for already.
//
// A DeviceClass may stand for an extended resource. A pod that requests that resource is charged
// for it by its name, and the scheduler makes a claim for the pod. Users may also make claims for
// the same class. So a quota of the resource counts all claims of its class, less the usage that
// their pods count.
type Devices struct {
	classes classes
	pods    corelisters.PodLister
	claims  cache.Indexer
	synced  []cache.InformerSynced
}

// classes maps extended resources to their DeviceClasses: extendedresourcecache.
type classes interface {
	GetDeviceClass(resource corev1.ResourceName) *resourcev1.DeviceClass
	GetExtendedResource(class string) string
}

// byPod indexes the claims that were made for the extended resources of a pod.
const byPod = "barque/extended-resources-of"

// FollowDevices requests its informers from a factory; it is called before they are started.
func FollowDevices(factory informers.SharedInformerFactory) (*Devices, error) {
	known := extendedresourcecache.NewExtendedResourceCache(klog.Background())
	following, err := factory.Resource().V1().DeviceClasses().Informer().AddEventHandler(known)
	if err != nil {
		return nil, fmt.Errorf("following DeviceClasses: %w", err)
	}
	claims := factory.Resource().V1().ResourceClaims().Informer()
	if _, indexed := claims.GetIndexer().GetIndexers()[byPod]; !indexed {
		if err := claims.AddIndexers(cache.Indexers{byPod: podOfClaim}); err != nil {
			return nil, fmt.Errorf("indexing ResourceClaims by pod: %w", err)
		}
	}
	pods := factory.Core().V1().Pods()
	return &Devices{known, pods.Lister(), claims.GetIndexer(), []cache.InformerSynced{
		following.HasSynced, claims.HasSynced, pods.Informer().HasSynced,
	}}, nil
}

// await returns when all is known by which claims are counted. A server that has just started would
// let claims pass that it takes for no extended resource's.
func (d *Devices) await(ctx context.Context) error {
	if d == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), d.synced...) {
		return apierrors.NewServerTimeout(deviceClaims.GroupResource(), "count against quotas", 1)
	}
	return nil
}

// podOfClaim is the index byPod.
func podOfClaim(obj any) ([]string, error) {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return nil, nil
	}
	pod := madeFor(claim)
	if pod == nil {
		return nil, nil
	}
	return []string{podKey(claim, pod)}, nil
}

func podKey(claim *resourcev1.ResourceClaim, pod *metav1.OwnerReference) string {
	return claim.Namespace + "/" + string(pod.UID)
}

// madeFor returns the pod for whose extended resources a claim was made, nil if it is another one.
func madeFor(claim *resourcev1.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(claim)
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || owner == nil || owner.Kind != "Pod" ||
		owner.APIVersion != "v1" {
		return nil
	}
	return owner
}

// counts reports whether a name in a quota stands for the devices of a class.
func (d *Devices) counts(name corev1.ResourceName) bool {
	if d == nil {
		return false
	}
	if class, implicit := strings.CutPrefix(string(name), corev1.ResourceImplicitExtendedClaimsPerClass); implicit &&
		d.classes.GetExtendedResource(class) != "" {
		return true
	}
	return isExtended(name) &&
		d.classes.GetDeviceClass(
			corev1.ResourceName(strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix))) != nil
}

// isExtended reports whether a quota sums up an extended resource under the name.
func isExtended(name corev1.ResourceName) bool {
	request, requested := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
	return requested && (isDevice(corev1.ResourceName(request)) || !validation.IsNativeResource(name))
}

// add adds the devices of a claim to the usage, under their names as extended resources.
func (d *Devices) add(usage corev1.ResourceList, claim *resourcev1.ResourceClaim, now time.Time) {
	if d == nil {
		return
	}
	extended := corev1.ResourceList{}
	for name, n := range usage {
		class, ofClass := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass)
		if !ofClass || class == "" {
			continue
		}
		extended[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] = n.DeepCopy()
		if resource := d.classes.GetExtendedResource(class); resource != "" {
			extended[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+resource)] = n.DeepCopy()
		}
	}
	if len(extended) == 0 {
		return
	}
	ofPod := d.usageOfPod(claim, now)
	for name, n := range extended {
		if charged, ok := ofPod[name]; ok {
			n.Sub(charged)
		}
		if n.Sign() > 0 {
			usage[name] = n
		}
	}
}

// usageOfPod returns the charge of the pod that a claim was made for. It is nothing if the pod is
// not known or has another claim. While the pod's status names no claim, its claim is the oldest.
func (d *Devices) usageOfPod(claim *resourcev1.ResourceClaim, now time.Time) corev1.ResourceList {
	owner := madeFor(claim)
	if owner == nil {
		return nil
	}
	pod, err := d.pods.Pods(claim.Namespace).Get(owner.Name)
	if err != nil || pod.UID != owner.UID {
		return nil
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		if status.ResourceClaimName != claim.Name {
			return nil
		}
		return podUsage(pod, now)
	}
	others, err := d.claims.ByIndex(byPod, podKey(claim, owner))
	if err != nil || slices.ContainsFunc(others, func(obj any) bool {
		other, ok := obj.(*resourcev1.ResourceClaim)
		return ok &&
			cmp.Or(other.CreationTimestamp.Compare(claim.CreationTimestamp.Time),
				cmp.Compare(other.Name, claim.Name)) < 0
	}) {
		return nil
	}
	return podUsage(pod, now)
}
