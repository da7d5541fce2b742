package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"
)

// Reserve takes the devices that Filter found on the node.
func (p *DynamicResources) Reserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, node string) *fwk.Status {
	s := devicesOf(state)
	if s == nil {
		return nil
	}
	found := s.found[node]
	for _, i := range s.toAllocate() {
		w := &s.claims[i]
		claim := w.claim
		if i == s.extended {
			if found == nil || found.extended == nil {
				continue // the node has a device plugin for it
			}
			claim = found.extended
		}
		if found == nil || found.results[i] == nil {
			return fwk.AsStatus(
				fmt.Errorf("no allocation was found on node %s for claim %s/%s", node, claim.Namespace, claim.Name))
		}
		claim = claim.DeepCopy()
		claim.Status.Allocation = found.results[i]
		if err := p.devices.Claims.Pend(claim); err != nil {
			return fwk.AsStatus(err)
		}
		w.allocation, w.pending = found.results[i], claim.UID
	}
	return nil
}

// Unreserve frees devices, and removes the pod from the users of its claims. A claim whose
// allocation is written stays allocated: another attempt may use it, and otherwise PostFilter
// deallocates it.
func (p *DynamicResources) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ string) {
	s := devicesOf(state)
	if s == nil {
		return
	}
	for i := range s.claims {
		w := &s.claims[i]
		w.allocation = nil
		if w.pending != "" {
			p.devices.Claims.Drop(w.pending)
			w.pending = ""
		}
		switch {
		case i == s.extended:
			if w.claim.Name != extendedInMemory {
				p.complain(pod, "delete the claim for extended resources", p.deleteClaim(ctx, w.claim))
			}
		case w.claim.Status.Allocation != nil && resourceclaim.IsReservedForPod(pod, w.claim, false):
			// By its key in the list, so that no other pod's reservation changes.
			patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"reservedFor":[{"$patch":"delete","uid":%q}]}}`,
				w.claim.UID, pod.UID)
			_, err := p.h.Client.ResourceV1().ResourceClaims(w.claim.Namespace).Patch(ctx, w.claim.Name,
				types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			p.complain(pod, "take back the reservation of a claim", err)
		}
	}
}

func (p *DynamicResources) complain(pod *v1.Pod, what string, err error) {
	if err != nil {
		p.h.Logger.Warn("a step for a pod's claims failed; it is tried again with the pod", "namespace", pod.Namespace,
			"pod", pod.Name, "step", what, "err", err)
	}
}

// PreBindPreFlight skips PreBind when there is nothing to write.
func (*DynamicResources) PreBindPreFlight(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string,
) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	result := &fwk.PreBindPreFlightResult{AllowParallel: true}
	if devicesOf(state) == nil {
		return result, fwk.NewStatus(fwk.Skip)
	}
	return result, nil
}

// PreBind writes allocations and reservations, and waits for devices that are attached only now.
func (p *DynamicResources) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	s := devicesOf(state)
	if s == nil {
		return nil
	}
	for i := range s.claims {
		w := &s.claims[i]
		if resourceclaim.IsReservedForPod(pod, w.claim, false) || (i == s.extended && w.allocation == nil) {
			continue
		}
		if err := p.bindClaim(ctx, s, i, pod, node); err != nil {
			return fwk.AsStatus(err)
		}
	}
	if err := p.awaitDevices(ctx, s, pod, node); err != nil {
		return fwk.AsStatus(err)
	}
	for i := range s.claims {
		if w := &s.claims[i]; w.pending != "" {
			p.devices.Claims.Drop(w.pending) // the claim itself has the allocation now
			w.pending = ""
		}
	}
	return nil
}

// bindClaim writes one claim's allocation, if it is new, and the pod's reservation.
func (p *DynamicResources) bindClaim(ctx context.Context, s *deviceState, i int, pod *v1.Pod, node string) error {
	w := &s.claims[i]
	if i == s.extended {
		claim, err := p.createExtended(ctx, s.found[node])
		if err != nil {
			return err
		}
		w.claim = claim // Unreserve deletes it from now on
	}
	claim := w.claim
	claims := p.h.Client.ResourceV1().ResourceClaims(claim.Namespace)
	name := claim.Namespace + "/" + claim.Name
	first := true
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if !first {
			if claim, err = claims.Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
				return fmt.Errorf("get updated claim %s after conflict: %w", name, err)
			}
		}
		first = false
		claim = claim.DeepCopy()
		switch {
		case claim.UID != w.claim.UID || claim.DeletionTimestamp != nil:
			return fmt.Errorf("claim %s got deleted in the meantime", name)
		case w.allocation != nil && claim.Status.Allocation != nil:
			return fmt.Errorf("claim %s got allocated elsewhere in the meantime", name)
		case w.allocation == nil && claim.Status.Allocation == nil:
			return fmt.Errorf("claim %s got deallocated elsewhere in the meantime", name)
		}
		if w.allocation != nil {
			// Before the allocation: a claim with devices must not be deleted before they are
			// freed.
			if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
				claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
				if claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
					return fmt.Errorf("add finalizer to claim %s: %w", name, err)
				}
			}
			claim.Status.Allocation = w.allocation.DeepCopy()
		}
		if claim.Status.Allocation.AllocationTimestamp == nil {
			claim.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now()}
		}
		// The API server decides whether there is room for one more user.
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID,
		})
		if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			if w.allocation != nil {
				return fmt.Errorf("add allocation and reservation to claim %s: %w", name, err)
			}
			return fmt.Errorf("add reservation to claim %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.claim = claim
	if i != s.extended {
		p.devices.Claims.Write(claim)
		return nil
	}
	p.awaitShown(ctx, claim)
	return p.patchExtendedStatus(ctx, pod, claim, s.found[node].mappings)
}

// PostFilter removes the allocation of an unused claim that kept the pod from nodes. Its devices
// may be on the wrong node, or never get ready. It removes one at a time, outside the loop; the
// change of the claim wakes the pod.
func (p *DynamicResources) PostFilter(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	s := devicesOf(state)
	if s == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	for _, i := range slices.Sorted(maps.Keys(s.unavailable)) {
		claim := s.claims[i].claim
		users := claim.Status.ReservedFor
		if i == s.extended || len(users) > 1 || (len(users) == 1 && users[0].UID != pod.UID) {
			continue
		}
		free := claim.DeepCopy()
		free.Status.ReservedFor, free.Status.Allocation, free.Status.Devices = nil, nil, nil
		p.h.Beside(pod, func() {
			written, err := p.h.Client.ResourceV1().ResourceClaims(free.Namespace).UpdateStatus(ctx, free,
				metav1.UpdateOptions{})
			if err == nil {
				p.devices.Claims.Write(written)
			}
			p.complain(pod, "deallocate a claim", err)
		})
		return nil, fwk.NewStatus(fwk.Unschedulable, "deallocation of ResourceClaim started")
	}
	if s.extended >= 0 && s.claims[s.extended].claim.Name != extendedInMemory {
		claim := s.claims[s.extended].claim
		p.h.Beside(pod,
			func() { p.complain(pod, "delete the claim for extended resources", p.deleteClaim(ctx, claim)) })
		return nil, fwk.NewStatus(fwk.Unschedulable, "deletion of ResourceClaim started")
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// Errors of devices that are attached after their allocation.
var (
	errBindingTimeout = errors.New("device binding timeout")
	errBindingFailed  = errors.New("device binding failed")
)

// awaitDevices waits until the drivers report the conditions that they have asked the scheduler to
// wait for.
func (p *DynamicResources) awaitDevices(ctx context.Context, s *deviceState, pod *v1.Pod, node string) error {
	if !slices.ContainsFunc(s.claims, func(w wantedClaim) bool { return hasConditions(w.claim) }) {
		return nil
	}
	p.h.Event(pod, v1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
		fmt.Sprintf("waiting for binding conditions for device on node %s", node))
	timeout := time.NewTimer(p.bindingTimeout)
	defer timeout.Stop()
	for {
		changed := p.devices.Claims.Changed()
		ready, err := p.devicesReady(s)
		if ready || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout.C:
			return errBindingTimeout
		case <-changed:
		}
	}
}

func (p *DynamicResources) devicesReady(s *deviceState) (bool, error) {
	for i := range s.claims {
		w := &s.claims[i]
		if w.claim.Status.Allocation == nil {
			continue
		}
		now, err := p.devices.Claims.Get(w.claim.Namespace, w.claim.Name)
		if err != nil {
			return false, err
		}
		if now.UID != w.claim.UID || now.Status.Allocation == nil {
			return false,
				fmt.Errorf("claim %s/%s got deallocated while its devices were awaited", w.claim.Namespace,
					w.claim.Name)
		}
		w.claim = now
		ready, err := readyToBind(now)
		switch {
		case err != nil:
			return false, err
		case !ready && p.bindingTimedOut(now, time.Now()):
			return false, fmt.Errorf("%w: claim=%s", errBindingTimeout, now.Name)
		case !ready:
			return false, nil
		}
	}
	return true, nil
}

func hasConditions(claim *resourcev1.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.BindingConditions) > 0 })
}

// readyToBind reports whether all devices of an allocated claim are attached. It fails when one
// cannot be.
func readyToBind(claim *resourcev1.ResourceClaim) (bool, error) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		if len(r.BindingConditions) == 0 {
			continue
		}
		i := slices.IndexFunc(claim.Status.Devices, func(d resourcev1.AllocatedDeviceStatus) bool {
			return d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device
		})
		if i < 0 {
			return false, nil
		}
		conditions := claim.Status.Devices[i].Conditions
		for _, name := range r.BindingFailureConditions {
			if c := apimeta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
				return false,
					fmt.Errorf("%w: claim=%s, reason=%s, message=%q", errBindingFailed, claim.Name, c.Reason, c.Message)
			}
		}
		for _, name := range r.BindingConditions {
			if !apimeta.IsStatusConditionTrue(conditions, name) {
				return false, nil
			}
		}
	}
	return true, nil
}

// bindingTimedOut reports whether the devices of a claim have exceeded the time for attachment.
func (p *DynamicResources) bindingTimedOut(claim *resourcev1.ResourceClaim, now time.Time) bool {
	allocation := claim.Status.Allocation
	return allocation != nil && allocation.AllocationTimestamp != nil && hasConditions(claim) &&
		allocation.AllocationTimestamp.Add(p.bindingTimeout).Before(now)
}
