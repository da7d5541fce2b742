package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/kubelet/volumes"
)

// attached waits until a volume may be used on this node: the node's status names it as in use, so
// that it is not detached any more, and as attached.
func (p *Plugin) attached(ctx context.Context, v *volumes.Volume) error {
	driver, handle := driverOf(v), handleOf(v)
	spec, err := p.spec(ctx, driver)
	if v.PV == nil || err != nil || !attachRequired(spec) {
		return err
	}
	name := uniqueName(driver, handle)
	wait, cancel := context.WithTimeoutCause(ctx, p.patience, fmt.Errorf(
		"timed out waiting for the volume to be attached; kubectl describe volumeattachment %s says why",
		attachmentName(handle, driver, p.NodeName)))
	defer cancel()
	err = p.until(wait, func() bool {
		node := p.Node()
		return node != nil && slices.Contains(node.Status.VolumesInUse, name) &&
			slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
	})
	if err != nil && ctx.Err() == nil && p.full(ctx, spec, driver, handle) {
		return &volumes.AttachLimitError{Err: err}
	}
	return err
}

// full reports whether a volume cannot be attached because the node has as many as it takes. Then
// it updates the number in the CSINode object, so that the scheduler chooses other nodes. It is for
// drivers whose CSIDriver object allows such updates.
func (p *Plugin) full(ctx context.Context, spec *storagev1.CSIDriver, driver, handle string) bool {
	if spec == nil || spec.Spec.NodeAllocatableUpdatePeriodSeconds == nil ||
		*spec.Spec.NodeAllocatableUpdatePeriodSeconds == 0 {
		return false
	}
	a, err := p.Client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(handle, driver, p.NodeName),
		metav1.GetOptions{})
	if err != nil {
		p.Logger.Warn("cannot tell why a volume is not attached", "volume", handle, "driver", driver, "err", err)
		return false
	}
	if e := a.Status.AttachError; e == nil || e.ErrorCode == nil ||
		codes.Code(*e.ErrorCode) != codes.ResourceExhausted {
		return false
	}
	d, err := p.drivers.get(driver)
	if err == nil {
		err = p.tellOf(ctx, driver, d.endpoint, p.objects.count)
	}
	if err != nil {
		p.Logger.Warn("cannot tell how many volumes of a CSI driver this node takes; the scheduler may choose it again",
			"driver", driver, "err", err)
	}
	return true
}

// publishContext returns the metadata of a volume's attachment, from the driver's controller.
func (p *Plugin) publishContext(ctx context.Context, v *volumes.Volume) (map[string]string, error) {
	driver, handle := driverOf(v), handleOf(v)
	spec, err := p.spec(ctx, driver)
	if v.PV == nil || err != nil || !attachRequired(spec) {
		return nil, err
	}
	a, err := p.Client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(handle, driver, p.NodeName),
		metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("volume %s has GET error for volume attachment: %w", handle, err)
	}
	if err := verify(a); err != nil {
		return nil, err
	}
	return a.Status.AttachmentMetadata, nil
}

// verify returns the reason why an attachment does not count.
func verify(a *storagev1.VolumeAttachment) error {
	switch {
	case a.DeletionTimestamp != nil:
		return errors.New("volume attachment is being deleted")
	case a.Status.Attached:
		return nil
	case a.Status.AttachError != nil:
		return errors.New(a.Status.AttachError.Message)
	}
	return fmt.Errorf("volume attachment %s is not attached yet", a.Name)
}

// InUse names the volumes that pods of the node have or will get, and those that the node is not
// rid of yet. It is not known before the disk and the CSIDriver objects have been read.
func (p *Plugin) InUse() (names []v1.UniqueVolumeName, known bool) {
	if !p.synced() {
		return nil, false
	}
	p.findOrphans()
	all, err := p.records()
	if err != nil {
		p.Logger.Warn("cannot tell which volumes are in use; trying again", "err", err)
		return nil, false
	}
	add := func(driver, handle string) {
		if spec, err := p.specs.Get(driver); err != nil || attachRequired(spec) {
			names = append(names, uniqueName(driver, handle))
		}
	}
	for _, v := range all {
		if v.PV != nil && v.PV.Spec.CSI != nil {
			add(driverOf(v), handleOf(v))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.found {
		return nil, false
	}
	for _, o := range p.orphans {
		add(o.driver, o.handle)
	}
	slices.Sort(names)
	return slices.Compact(names), true
}
