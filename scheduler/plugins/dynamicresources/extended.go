package dynamicresources

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/util/retry"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// A pod may request devices like any extended resource if a DeviceClass names that resource. On a
// node without a device plugin for it, the pod gets a claim of its own. PreBind creates the claim,
// and pod.status.extendedResourceClaimStatus names it.

const (
	// extendedInMemory is the name of that claim before it exists. No object can have it.
	extendedInMemory = "<extended-resources>"
	// showTimeout is how long a binding waits for the informer to show that claim.
	showTimeout = 2 * time.Minute
)

// extendedClaim returns the claim for the pod's extended resources, and the requests for these. The
// claim is nil when no class stands for any of them. A claim of an earlier attempt is returned
// unchanged.
func (p *DynamicResources) extendedClaim(
	state fwk.CycleState, pod *v1.Pod,
) (*resourcev1.ResourceClaim, map[v1.ResourceName]int64) {
	info, _ := framework.PodInfoOf(state, pod) // a pod whose affinity does not parse still has its requests
	scalars := info.CalculateResource().Resource.GetScalarResources()
	asked := false
	for name, amount := range scalars {
		asked = asked ||
			(amount > 0 && framework.IsDeviceResource(name) && p.devices.ByResource.GetDeviceClass(name) != nil)
	}
	if !asked {
		return nil, nil
	}
	if claim := p.devices.Claims.ForExtendedResources(pod.Namespace, pod.UID); claim != nil {
		return claim, scalars
	}
	controller := true
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: extendedInMemory, GenerateName: pod.Name + "-extended-resources-",
		UID:         uuid.NewUUID(), // for the ledger, until it has one
		Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &controller}},
	}}, scalars
}

// extendedOn returns the claim for the pod's extended resources on the node. It is nil when the
// node has them all by device plugins.
func (p *DynamicResources) extendedOn(
	s *deviceState, pod *v1.Pod, node fwk.NodeInfo,
) (*resourcev1.ResourceClaim, []v1.ContainerExtendedResourceRequest, *fwk.Status) {
	if s.extended < 0 {
		return nil, nil, nil
	}
	claim := s.claims[s.extended].claim
	if claim.Name != extendedInMemory {
		// Of an attempt that failed. PostFilter deletes it: whether it fits another node is not
		// known.
		return nil, nil, unusable("cannot schedule extended resource claim")
	}
	var missing []v1.ResourceName
	for name, amount := range s.scalars {
		if amount == 0 || !framework.IsDeviceResource(name) {
			continue
		}
		allocatable, listed := node.GetAllocatable().GetScalarResources()[name]
		switch {
		case allocatable == 0 && p.devices.ByResource.GetDeviceClass(name) != nil:
			missing = append(missing, name)
		case !listed:
			return nil, nil, unusable("cannot fit resource")
		}
	}
	if len(missing) == 0 {
		return nil, nil, nil
	}
	slices.Sort(missing)
	claim = claim.DeepCopy()
	var mappings []v1.ContainerExtendedResourceRequest
	for _, name := range missing {
		if class := p.devices.ByResource.GetDeviceClass(name); class != nil {
			requests, m := deviceRequests(pod, name, class.Name)
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, requests...)
			mappings = append(mappings, m...)
		}
	}
	slices.SortFunc(claim.Spec.Devices.Requests,
		func(a, b resourcev1.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	return claim, mappings, nil
}

// deviceRequests returns the requests for one extended resource, and the containers' mapping to
// them.
//
// Each container that runs beside others has a request of its own. Init containers run in sequence
// before later containers. They share the later containers' devices and one more request, which
// covers the largest remaining need.
func deviceRequests(
	pod *v1.Pod, name v1.ResourceName, class string,
) (requests []resourcev1.DeviceRequest, mappings []v1.ContainerExtendedResourceRequest) {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	own := make([]*resourcev1.DeviceRequest, len(containers)) // of the containers that run beside others
	short := func(i int) bool {
		policy := containers[i].RestartPolicy
		return i < len(pod.Spec.InitContainers) && (policy == nil || *policy != v1.ContainerRestartPolicyAlways)
	}
	mapping := func(i int, request string) v1.ContainerExtendedResourceRequest {
		return v1.ContainerExtendedResourceRequest{ContainerName: containers[i].Name, ResourceName: string(name),
			RequestName: request}
	}
	for i := range containers {
		if short(i) {
			continue
		}
		if amount := amountOf(&containers[i], name); amount > 0 {
			own[i] = deviceRequest(i, &containers[i], name, class, amount)
			requests = append(requests, *own[i])
			mappings = append(mappings, mapping(i, own[i].Name))
		}
	}
	var largest *resourcev1.DeviceRequest
	var extra []int // of mappings, whose request is the largest
	for i := range containers {
		amount := amountOf(&containers[i], name)
		if !short(i) || amount == 0 {
			continue
		}
		for _, r := range own[i:] {
			if r != nil && amount > 0 {
				amount -= r.Exactly.Count
				mappings = append(mappings, mapping(i, r.Name))
			}
		}
		if amount > 0 {
			if largest == nil || largest.Exactly.Count < amount {
				largest = deviceRequest(i, &containers[i], name, class, amount)
			}
			extra = append(extra, len(mappings))
			mappings = append(mappings, mapping(i, ""))
		}
	}
	if largest != nil {
		requests = append(requests, *largest)
		for _, m := range extra {
			mappings[m].RequestName = largest.Name
		}
	}
	return requests, mappings
}

func amountOf(c *v1.Container, name v1.ResourceName) int64 {
	q, ok := c.Resources.Requests[name]
	if !ok {
		return 0
	}
	amount, exact := q.AsInt64()
	if !exact {
		return 0
	}
	return amount
}

// deviceRequest names a request after the container's index and the resource's index in the
// container's requests.
func deviceRequest(i int, c *v1.Container, name v1.ResourceName, class string, count int64) *resourcev1.DeviceRequest {
	place := slices.Index(slices.Sorted(maps.Keys(c.Resources.Requests)), name)
	return &resourcev1.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, place),
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
		},
	}
}

// createExtended creates the claim that Filter has made for the node.
func (p *DynamicResources) createExtended(ctx context.Context, found *nodeDevices) (*resourcev1.ResourceClaim, error) {
	if found == nil || found.extended == nil {
		return nil, fmt.Errorf("no claim for extended resources was made for the node")
	}
	claim := found.extended.DeepCopy()
	claim.Name, claim.UID = "", ""
	created, err := p.h.Client.ResourceV1().ResourceClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim for extended resources in namespace %s: %w", claim.Namespace, err)
	}
	return created, nil
}

// awaitShown waits until the informer shows the claim: only then can the ledger notice its
// deletion.
func (p *DynamicResources) awaitShown(ctx context.Context, claim *resourcev1.ResourceClaim) {
	timeout := time.NewTimer(showTimeout)
	defer timeout.Stop()
	for {
		changed := p.devices.Claims.Changed()
		if p.devices.Claims.Write(claim) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timeout.C:
			p.h.Logger.Warn("the informer does not show a claim that was created", "namespace", claim.Namespace,
				"claim", claim.Name)
			return
		case <-changed:
		}
	}
}

// patchExtendedStatus writes the containers' parts of the claim to the pod's status, for the
// kubelet.
func (p *DynamicResources) patchExtendedStatus(
	ctx context.Context, pod *v1.Pod, claim *resourcev1.ResourceClaim, mappings []v1.ContainerExtendedResourceRequest,
) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"extendedResourceClaimStatus": v1.PodExtendedResourceClaimStatus{
			RequestMappings: mappings, ResourceClaimName: claim.Name,
		}},
	})
	if err == nil {
		_, err = p.h.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// deleteClaim deletes a claim with its finalizer, which would keep it until its devices were given
// back.
func (p *DynamicResources) deleteClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	claims := p.h.Client.ResourceV1().ResourceClaims(claim.Namespace)
	uid, name, first := claim.UID, claim.Name, true
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if !first {
			if claim, err = claims.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		first = false
		i := slices.Index(claim.Finalizers, resourcev1.Finalizer)
		if claim.UID != uid || i < 0 {
			return nil
		}
		claim = claim.DeepCopy()
		claim.Finalizers = slices.Delete(claim.Finalizers, i, i+1)
		_, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = claims.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(uid)))
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
