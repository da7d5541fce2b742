package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/ephemeral"
)

// Claims reads claims and the volumes that they are bound to.
type Claims interface {
	Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	Volume(ctx context.Context, name string) (*v1.PersistentVolume, error)
}

// RequestedClaims asks the API server. A node may read the claims of its pods one by one; it cannot
// watch them.
type RequestedClaims struct{ Client kubernetes.Interface }

// Claim implements Claims.
func (c RequestedClaims) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return c.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Volume implements Claims.
func (c RequestedClaims) Volume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	return c.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

// claimName returns the name of the claim behind a volume of a pod, or "".
func claimName(pod *v1.Pod, volume *v1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, volume)
	}
	return ""
}

// bound finds the volume that a pod's claim is bound to. Its errors give the reason why
// the pod waits.
func bound(ctx context.Context, claims Claims, pod *v1.Pod, volume *v1.Volume) (*v1.PersistentVolume, error) {
	name := claimName(pod, volume)
	claim, err := claims.Claim(ctx, pod.Namespace, name)
	if err != nil {
		return nil, processing(pod, name, fmt.Errorf("failed to fetch PVC from API server: %w", err))
	}
	if volume.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, err
		}
	}
	switch {
	case claim.DeletionTimestamp != nil:
		return nil, processing(pod, name, errors.New("PVC is being deleted"))
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, processing(pod, name, errors.New("PVC is not bound"))
	}
	pv, err := claims.Volume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return nil,
			processing(pod, name, fmt.Errorf("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err))
	}
	switch ref := pv.Spec.ClaimRef; {
	case ref == nil:
		err = fmt.Errorf(
			"found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", pv.Name)
	case ref.UID != claim.UID:
		err = fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", pv.Name,
			ref.UID, claim.UID)
	default:
		return pv, fitting(pod, volume.Name, pv)
	}
	return nil, processing(pod, name, err)
}

func processing(pod *v1.Pod, claim string, err error) error {
	return fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, claim, err)
}

// fitting checks that containers use a volume in its mode: as files or as a device.
func fitting(pod *v1.Pod, volume string, pv *v1.PersistentVolume) error {
	block := (&Volume{PV: pv}).Block()
	mode := v1.PersistentVolumeFilesystem
	if block {
		mode = v1.PersistentVolumeBlock
	}
	asFiles, asDevice := uses(pod, volume)
	switch {
	case block && asFiles:
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", volume, mode)
	case !block && asDevice:
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", volume, mode)
	}
	return nil
}

// uses returns how the containers of a pod use a volume.
func uses(pod *v1.Pod, volume string) (asFiles, asDevice bool) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			asFiles = asFiles || mountsVolume(&list[i], volume)
			for _, d := range list[i].VolumeDevices {
				asDevice = asDevice || d.Name == volume
			}
		}
	}
	return asFiles, asDevice
}

func mountsVolume(c *v1.Container, volume string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == volume })
}
