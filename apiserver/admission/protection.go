package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
)

// Protection keeps objects in use from deletion: it puts a finalizer on new objects. A controller
// removes the finalizer when the object is no longer used.
type Protection struct{ *admission.Handler }

var _ admission.MutationInterface = (*Protection)(nil)

// NewProtection returns the step.
func NewProtection() *Protection { return &Protection{admission.NewHandler(admission.Create)} }

// Finalizers that protect.
const (
	volumeProtection = "kubernetes.io/pv-protection"
	claimProtection  = "kubernetes.io/pvc-protection"
	classProtection  = "kubernetes.io/vac-protection"
)

// Admit implements admission.MutationInterface.
func (p *Protection) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	finalizer := ""
	switch a.GetObject().(type) {
	case *corev1.PersistentVolume:
		finalizer = volumeProtection
	case *corev1.PersistentVolumeClaim:
		finalizer = claimProtection
	case *storagev1.VolumeAttributesClass:
		finalizer = classProtection
	default:
		return nil
	}
	m, err := meta.Accessor(a.GetObject())
	if err == nil && !slices.Contains(m.GetFinalizers(), finalizer) {
		m.SetFinalizers(append(m.GetFinalizers(), finalizer))
	}
	return err
}
