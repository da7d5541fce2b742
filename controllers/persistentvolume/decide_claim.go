package persistentvolume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// event is an event for users.
type event struct {
	kind, reason, message string
}

// plan has the changes for a claim or a volume. An unchanged object has no copy.
type plan struct {
	// volume and claim are as they should be, metadata, spec and status. The volume is written
	// first. was is the volume before.
	was    *corev1.PersistentVolume
	volume *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
	// Events are sent when all is written.
	volumeEvents, claimEvents []event
	// destroy is the host's directory to delete, and the volume with it; "" is none.
	destroy string
	// waits means that another change must come first. The key is reconciled again at the next
	// resync.
	waits bool
}

// claimView is the input of a decision about a claim.
type claimView struct {
	named      *corev1.PersistentVolume   // the volume of spec.volumeName, nil when it is not there
	candidates []*corev1.PersistentVolume // volumes that name the claim, or its class and no claim
	class      *storagev1.StorageClass    // of the claim, nil when it is not there
	standard   *storagev1.StorageClass    // of claims that name none, nil when there is none
	waiting    []string                   // pods without a node that use the claim
}

// preResizeCapacity says how large a volume was before it began to grow.
const preResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"

// inTree is the prefix of the provisioners that were part of Kubernetes.
const inTree = "kubernetes.io/"

func decideClaim(claim *corev1.PersistentVolumeClaim, v claimView) plan {
	switch {
	case metav1.HasAnnotation(claim.ObjectMeta, storage.AnnBindCompleted):
		return decideBound(claim, v.named)
	case claim.Spec.VolumeName != "":
		return decideRequested(claim, v.named)
	}
	delayed := v.class != nil && ptr.Deref(v.class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
	volume, err := match(claim, v.candidates, delayed)
	switch {
	case err != nil:
		return pending(claim, event{corev1.EventTypeWarning, "FailedBinding", err.Error()})
	case volume != nil:
		return bind(volume, claim)
	case !storage.PersistentVolumeClaimHasClass(claim) && v.standard != nil:
		next := claim.DeepCopy()
		next.Spec.StorageClassName = &v.standard.Name
		return plan{claim: next}
	case delayed && !storage.IsDelayBindingProvisioning(claim):
		return pending(claim, firstConsumer(v.waiting))
	case storage.GetPersistentVolumeClaimClass(claim) != "":
		return provision(claim, v.class)
	}
	return pending(claim, event{corev1.EventTypeNormal, "FailedBinding",
		"no persistent volumes available for this claim and no storage class is set"})
}

// firstConsumer returns the event of a claim that waits for the node of a pod.
func firstConsumer(pods []string) event {
	switch len(pods) {
	case 0:
		return event{corev1.EventTypeNormal, "WaitForFirstConsumer",
			"waiting for first consumer to be created before binding"}
	case 1:
		return event{corev1.EventTypeNormal, "WaitForPodScheduled",
			fmt.Sprintf("waiting for pod %s to be scheduled", pods[0])}
	}
	return event{corev1.EventTypeNormal, "WaitForPodScheduled",
		fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(pods, ","))}
}

// provision marks a claim for the provisioner of its class.
func provision(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) plan {
	if class == nil {
		missing := apierrors.NewNotFound(storagev1.Resource("storageclass"),
			storage.GetPersistentVolumeClaimClass(claim))
		return pending(claim, event{corev1.EventTypeWarning, "ProvisioningFailed", missing.Error()})
	}
	if strings.HasPrefix(class.Provisioner, inTree) {
		return pending(claim,
			event{corev1.EventTypeWarning, "ProvisioningFailed", "no volume plugin matched name: " + class.Provisioner})
	}
	p := pending(claim, event{corev1.EventTypeNormal, "ExternalProvisioning", fmt.Sprintf(
		"Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. "+
			"If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
		class.Provisioner)})
	if claim.Annotations[storage.AnnStorageProvisioner] != class.Provisioner ||
		claim.Annotations[storage.AnnBetaStorageProvisioner] != class.Provisioner {
		if p.claim == nil {
			p.claim = claim.DeepCopy()
		}
		metav1.SetMetaDataAnnotation(&p.claim.ObjectMeta, storage.AnnStorageProvisioner, class.Provisioner)
		metav1.SetMetaDataAnnotation(&p.claim.ObjectMeta, storage.AnnBetaStorageProvisioner, class.Provisioner)
	}
	return p
}

// decideRequested is about a claim that names its volume and is not bound to it yet.
func decideRequested(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) plan {
	switch {
	case volume == nil:
		return pending(claim)
	case volume.Spec.ClaimRef == nil:
		if why := unfit(volume, claim); why != "" {
			return pending(claim,
				event{corev1.EventTypeWarning, "VolumeMismatch",
					fmt.Sprintf("Cannot bind to requested volume %q: %s", volume.Name, why)})
		}
		return bind(volume, claim)
	case storage.IsVolumeBoundToClaim(volume, claim):
		return bind(volume, claim)
	}
	return pending(claim,
		event{corev1.EventTypeWarning, "FailedBinding",
			fmt.Sprintf("volume %q already bound to a different claim.", volume.Name)})
}

// unfit returns why a claim cannot have the volume that it names, or "".
func unfit(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	size, wanted := volume.Spec.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case volume.DeletionTimestamp != nil:
		return fmt.Sprintf("the volume is marked for deletion %q", volume.Name)
	case size.Cmp(wanted) < 0:
		return "requested PV is too small"
	case storage.GetPersistentVolumeClass(volume) != storage.GetPersistentVolumeClaimClass(claim):
		return "storageClassName does not match"
	case ptr.Deref(volume.Spec.VolumeAttributesClassName, "") != ptr.Deref(claim.Spec.VolumeAttributesClassName, ""):
		return "volumeAttributesClassName does not match"
	case storage.CheckVolumeModeMismatches(&claim.Spec, &volume.Spec):
		return "incompatible volumeMode"
	case !storage.CheckAccessModes(claim, volume):
		return "incompatible accessMode"
	}
	return ""
}

// decideBound is about a claim that has been bound once. It never gets another volume: its data is
// on that one.
func decideBound(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) plan {
	switch {
	case claim.Spec.VolumeName == "":
		return lost(claim, "ClaimLost",
			"Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case volume == nil:
		return lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID == claim.UID:
		return bind(volume, claim)
	}
	return lost(claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
}

func lost(claim *corev1.PersistentVolumeClaim, reason, message string) plan {
	if claim.Status.Phase == corev1.ClaimLost {
		return plan{}
	}
	return plan{claim: without(claim, corev1.ClaimLost),
		claimEvents: []event{{corev1.EventTypeWarning, reason, message}}}
}

func pending(claim *corev1.PersistentVolumeClaim, events ...event) plan {
	return plan{claim: without(claim, corev1.ClaimPending), claimEvents: events, waits: true}
}

// without returns a claim as it is in a phase without a volume, nil when it is so.
func without(
	claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase,
) *corev1.PersistentVolumeClaim {
	if claim.Status.Phase == phase && claim.Status.AccessModes == nil && claim.Status.Capacity == nil {
		return nil
	}
	next := claim.DeepCopy()
	next.Status.Phase, next.Status.AccessModes, next.Status.Capacity = phase, nil, nil
	return next
}

// bind makes a volume and a claim name each other, where they do not yet.
func bind(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) plan {
	size, ok := volume.Spec.Capacity[corev1.ResourceStorage]
	if !ok {
		return pending(claim,
			event{corev1.EventTypeWarning, "FailedBinding",
				fmt.Sprintf("PersistentVolume %q is without a storage capacity", volume.Name)})
	}
	// It fails only for a claim of a kind that the scheme does not know.
	v, _, err := storage.GetBindVolumeToClaim(volume, claim)
	if err != nil {
		return pending(claim, event{corev1.EventTypeWarning, "FailedBinding", err.Error()})
	}
	if v.Status.Phase != corev1.VolumeBound {
		v.Status.Phase, v.Status.Message = corev1.VolumeBound, ""
	}
	c := claim.DeepCopy()
	if c.Spec.VolumeName != volume.Name {
		c.Spec.VolumeName = volume.Name
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, storage.AnnBoundByController, "yes")
	}
	if !metav1.HasAnnotation(c.ObjectMeta, storage.AnnBindCompleted) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, storage.AnnBindCompleted, "yes")
	}
	c.Status.AccessModes = slices.Clone(volume.Spec.AccessModes)
	if c.Status.Phase != corev1.ClaimBound {
		// Of a bound claim these belong to the resizer: its file system may be smaller than the
		// volume.
		c.Status.Phase = corev1.ClaimBound
		c.Status.Capacity = volume.Spec.Capacity.DeepCopy()
		if before, err := resource.ParseQuantity(volume.Annotations[preResizeCapacity]); err == nil {
			c.Status.Capacity[corev1.ResourceStorage] = before
		} else {
			c.Status.Capacity[corev1.ResourceStorage] = size
		}
		if name := ptr.Deref(volume.Spec.VolumeAttributesClassName, ""); name != "" {
			c.Status.CurrentVolumeAttributesClassName = &name
		} else {
			c.Status.CurrentVolumeAttributesClassName = nil
		}
	}
	var p plan
	if !apiequality.Semantic.DeepEqual(v, volume) {
		p.was, p.volume = volume, v
	}
	if !apiequality.Semantic.DeepEqual(c, claim) {
		p.claim = c
	}
	return p
}
