package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storage "k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// decided returns how a pod gets its volumes on its node, nil when it has them all.
func decided(state fwk.CycleState, node string) *nodeVolumes {
	s, ok := framework.ReadState[*volumeState](state, volumeBindingKey)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNode[node]
}

// Reserve assumes the found volumes for the claims, so that no other pod gets them. PreBind writes
// the objects that Reserve puts into the state.
func (p *VolumeBinding) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	found := decided(state, node)
	if found == nil {
		return nil
	}
	err := p.assume(found, node)
	if err != nil {
		p.forget(found)
	}
	return fwk.AsStatus(err)
}

func (p *VolumeBinding) assume(found *nodeVolumes, node string) error {
	for i := range found.bind {
		b := &found.bind[i]
		volume, _, err := storage.GetBindVolumeToClaim(b.volume, b.claim)
		if err != nil {
			return err
		}
		if err := p.volumes.assume(volume); err != nil {
			return fmt.Errorf("volume %w", err)
		}
		b.volume = volume
	}
	for i := range found.provision {
		x := &found.provision[i]
		claim := x.claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storage.AnnSelectedNode, node)
		if err := p.claims.assume(claim); err != nil {
			return fmt.Errorf("claim %w", err)
		}
		x.claim = claim
	}
	return nil
}

// Unreserve ends the assumptions. Writes stay: the next attempt finds them.
func (p *VolumeBinding) Unreserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, node string) {
	if found := decided(state, node); found != nil {
		p.forget(found)
	}
}

func (p *VolumeBinding) forget(found *nodeVolumes) {
	for _, b := range found.bind {
		p.volumes.forget(b.volume)
	}
	for _, x := range found.provision {
		p.claims.forget(x.claim)
	}
}

// PreBindPreFlight skips pods whose volumes are all bound.
func (p *VolumeBinding) PreBindPreFlight(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, node string,
) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	if decided(state, node) == nil {
		return nil, skipped
	}
	return nil, nil
}

// PreBind writes the claims' volumes, and the node for volumes to be made, and waits until the
// claims are bound. When it fails, the pod is scheduled again.
func (p *VolumeBinding) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	found := decided(state, node)
	if found == nil {
		return nil
	}
	if err := p.write(ctx, found); err != nil {
		return fwk.AsStatus(err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := p.await(ctx, found, pod, node); err != nil {
		return fwk.AsStatus(fmt.Errorf("binding volumes: %w", err))
	}
	return nil
}

func (p *VolumeBinding) write(ctx context.Context, found *nodeVolumes) error {
	for i := range found.bind {
		written, err := p.client.CoreV1().PersistentVolumes().Update(ctx, found.bind[i].volume, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		found.bind[i].volume = written
	}
	for i := range found.provision {
		claim := found.provision[i].claim
		written, err := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim,
			metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		found.provision[i].claim = written
	}
	return nil
}

// How long await waits between two looks. The binder needs milliseconds, a provisioner seconds.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = time.Second
)

// await looks at the claims until they are bound, or until it is clear that they will not be.
func (p *VolumeBinding) await(ctx context.Context, found *nodeVolumes, pod *v1.Pod, node string) error {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		if done, err := p.check(found, pod, node); done || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// check reports whether all claims are bound, by written objects and not by assumed ones. After an
// error the pod must be scheduled again.
func (p *VolumeBinding) check(found *nodeVolumes, pod *v1.Pod, name string) (done bool, _ error) {
	node, err := p.nodes.Get(name)
	if err != nil {
		return false, fmt.Errorf("failed to get node %q: %w", name, err)
	}
	if is, err := p.pods.Pods(pod.Namespace).Get(pod.Name); apierrors.IsNotFound(err) ||
		err == nil && is.UID != pod.UID {
		return false, errors.New("pod does not exist any more")
	}
	done = true
	for _, b := range found.bind {
		bound, err := p.checkBinding(b, node)
		if err != nil {
			return false, err
		}
		done = done && bound
	}
	for _, x := range found.provision {
		bound, err := p.checkProvisioning(x.claim, node)
		if err != nil {
			return false, err
		}
		done = done && bound
	}
	return done, nil
}

func (p *VolumeBinding) checkBinding(b binding, node *v1.Node) (bool, error) {
	volume, claim := p.volumes.known(b.volume.Name), p.claims.known(keyOf(b.claim))
	switch {
	case volume == nil:
		return false, fmt.Errorf("failed to check binding: persistentvolume %q not found", b.volume.Name)
	case claim == nil || claim.UID != b.claim.UID:
		return false, fmt.Errorf("failed to check binding: persistentvolumeclaim %q not found", b.claim.Name)
	case newer(b.volume, volume):
		return false, nil // the informer has not seen the write
	case storage.CheckNodeAffinity(volume, node.Labels) != nil:
		return false, fmt.Errorf("pv %q node affinity doesn't match node %q", volume.Name, node.Name)
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID == "":
		return false, fmt.Errorf("ClaimRef got reset for pv %q", volume.Name)
	}
	return fullyBound(claim), nil
}

func (p *VolumeBinding) checkProvisioning(written *v1.PersistentVolumeClaim, node *v1.Node) (bool, error) {
	claim := p.claims.known(keyOf(written))
	switch {
	case claim == nil || claim.UID != written.UID:
		return false, fmt.Errorf("failed to check provisioning pvc: persistentvolumeclaim %q not found", written.Name)
	case newer(written, claim):
		return false, nil // the informer has not seen the write
	case claim.Annotations[storage.AnnSelectedNode] != node.Name:
		// The provisioner takes the annotation away when it cannot make the volume there.
		return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
	case claim.Spec.VolumeName == "":
		return false, nil
	}
	volume := p.volumes.known(claim.Spec.VolumeName)
	switch {
	case volume == nil:
		return false, nil // the informer of volumes may be slower
	case storage.CheckNodeAffinity(volume, node.Labels) != nil:
		return false, fmt.Errorf("pv %q node affinity doesn't match node %q", volume.Name, node.Name)
	}
	return fullyBound(claim), nil
}
