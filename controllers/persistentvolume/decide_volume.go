package persistentvolume

import (
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storage "k8s.io/component-helpers/storage/volume"
)

// decideVolume is about a volume and the claim that its claimRef names, nil when that is gone.
func decideVolume(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) plan {
	ref := volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return plan{was: volume, volume: inPhase(volume, corev1.VolumeAvailable, "")}
	}
	if claim != nil && claim.UID != ref.UID {
		claim = nil // another one of that name
	}
	switch {
	case claim == nil:
		return release(volume)
	case claim.Spec.VolumeName == volume.Name:
		return plan{was: volume, volume: inPhase(volume, corev1.VolumeBound, "")}
	case claim.Spec.VolumeName != "":
		if metav1.HasAnnotation(volume.ObjectMeta, storage.AnnDynamicallyProvisioned) &&
			volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			return release(volume) // it was made for a claim that has got another volume
		}
		return plan{was: volume, volume: unbound(volume)}
	case storage.CheckVolumeModeMismatches(&claim.Spec, &volume.Spec):
		return plan{
			was: volume,
			volumeEvents: []event{{corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf(
				"Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.",
				claim.Name)}},
			claimEvents: []event{{corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf(
				"Cannot bind PersistentVolume %q to requested PersistentVolumeClaim %q due to incompatible volumeMode.",
				volume.Name, claim.Name)}},
		}
	}
	return plan{} // the claim's turn
}

// release decides about a volume without a claim. It first sets the phase Released.
func release(volume *corev1.PersistentVolume) plan {
	if p := volume.Status.Phase; p != corev1.VolumeReleased && p != corev1.VolumeFailed {
		return plan{was: volume, volume: inPhase(volume, corev1.VolumeReleased, "")}
	}
	if volume.DeletionTimestamp != nil {
		return plan{}
	}
	switch volume.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return plan{}
	case corev1.PersistentVolumeReclaimRecycle:
		return failed(volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
	case corev1.PersistentVolumeReclaimDelete:
		return decideDelete(volume)
	}
	return failed(volume, "VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
}

// decideDelete leaves a volume to the provisioner that made it. Of the others only hostPath volumes
// can be deleted.
func decideDelete(volume *corev1.PersistentVolume) plan {
	if metav1.HasAnnotation(volume.ObjectMeta, storage.AnnMigratedTo) {
		return plan{}
	}
	if by := volume.Annotations[storage.AnnDynamicallyProvisioned]; by != "" {
		if !strings.HasPrefix(by, inTree) {
			return plan{}
		}
		return failed(volume, "VolumeFailedDelete", "no volume plugin matched name: "+by)
	}
	if volume.Spec.HostPath == nil {
		return failed(volume, "VolumeFailedDelete",
			fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched",
				volume.Name))
	}
	path := filepath.Clean(volume.Spec.HostPath.Path)
	if below, ok := strings.CutPrefix(path, "/tmp/"); !ok || below == "" {
		return failed(volume, "VolumeFailedDelete",
			"host_path deleter only supports /tmp/.+ but received provided "+volume.Spec.HostPath.Path)
	}
	return plan{was: volume, destroy: path}
}

// inPhase returns a volume as it is in a phase, nil when it is.
func inPhase(
	volume *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string,
) *corev1.PersistentVolume {
	if volume.Status.Phase == phase {
		return nil
	}
	next := volume.DeepCopy()
	next.Status.Phase, next.Status.Message = phase, message
	return next
}

func failed(volume *corev1.PersistentVolume, reason, message string) plan {
	next := inPhase(volume, corev1.VolumeFailed, message)
	if next == nil {
		return plan{}
	}
	return plan{was: volume, volume: next, volumeEvents: []event{{corev1.EventTypeWarning, reason, message}}}
}

// unbound takes a volume back from a claim that has another one. A user's reservation stays.
func unbound(volume *corev1.PersistentVolume) *corev1.PersistentVolume {
	next := volume.DeepCopy()
	if metav1.HasAnnotation(volume.ObjectMeta, storage.AnnBoundByController) {
		next.Spec.ClaimRef = nil
		delete(next.Annotations, storage.AnnBoundByController)
	} else {
		next.Spec.ClaimRef.UID = ""
	}
	next.Status.Phase, next.Status.Message = corev1.VolumeAvailable, ""
	return next
}
