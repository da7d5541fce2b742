package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// IngressClasses gives ingresses that name no class the default one.
type IngressClasses struct {
	*admission.Handler
	classes networkinglisters.IngressClassLister
}

// StorageClasses gives claims that name no class the default one.
type StorageClasses struct {
	*admission.Handler
	classes storagelisters.StorageClassLister
}

// ClaimResize lets claims grow only if their class allows expansion.
type ClaimResize struct {
	*admission.Handler
	classes storagelisters.StorageClassLister
}

var (
	_ admission.MutationInterface   = (*IngressClasses)(nil)
	_ admission.MutationInterface   = (*StorageClasses)(nil)
	_ admission.ValidationInterface = (*ClaimResize)(nil)
)

// NewIngressClasses returns the step.
func NewIngressClasses(classes networkinglisters.IngressClassLister) *IngressClasses {
	return &IngressClasses{admission.NewHandler(admission.Create), classes}
}

// NewStorageClasses returns the step.
func NewStorageClasses(classes storagelisters.StorageClassLister) *StorageClasses {
	return &StorageClasses{admission.NewHandler(admission.Create), classes}
}

// NewClaimResize returns the step.
func NewClaimResize(classes storagelisters.StorageClassLister) *ClaimResize {
	return &ClaimResize{admission.NewHandler(admission.Update), classes}
}

// oldIngressClass is the annotation that named the class of an ingress before it had a field.
const oldIngressClass = "kubernetes.io/ingress.class"

// Admit implements admission.MutationInterface.
func (i *IngressClasses) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	ingress, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok || a.GetSubresource() != "" || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, named := ingress.Annotations[oldIngressClass]; named {
		return nil
	}
	all, err := i.classes.List(labels.Everything())
	if class := newestDefault(all, networkingv1.AnnotationIsDefaultIngressClass); class != nil {
		ingress.Spec.IngressClassName = &class.Name
	}
	return admissionErr(a, err)
}

// Annotations that make a storage class the default; the second one is from before it was stable.
const (
	defaultStorageClass     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultStorageClass = "storageclass.beta.kubernetes.io/is-default-class"
)

// Admit implements admission.MutationInterface. A claim of class "" wants none.
func (s *StorageClasses) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok || a.GetSubresource() != "" || claim.Spec.StorageClassName != nil {
		return nil
	}
	if _, named := claim.Annotations[corev1.BetaStorageClassAnnotation]; named {
		return nil
	}
	all, err := s.classes.List(labels.Everything())
	if class := newestDefault(all, defaultStorageClass, betaDefaultStorageClass); class != nil {
		claim.Spec.StorageClassName = &class.Name
	}
	return admissionErr(a, err)
}

// newestDefault returns the newest of the classes that one of the annotations makes the default, of
// those the first by name, or nil.
func newestDefault[P interface {
	*networkingv1.IngressClass | *storagev1.StorageClass
	metav1.Object
}](classes []P, annotations ...string) P {
	var newest P
	for _, c := range classes {
		marked := false
		for _, annotation := range annotations {
			marked = marked || c.GetAnnotations()[annotation] == "true"
		}
		if !marked {
			continue
		}
		if newest != nil {
			at, than := c.GetCreationTimestamp(), newest.GetCreationTimestamp()
			if at.Before(&than) || at.Equal(&than) && c.GetName() > newest.GetName() {
				continue
			}
		}
		newest = c
	}
	return newest
}

// Validate implements admission.ValidationInterface.
func (c *ClaimResize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	old, ok2 := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok || !ok2 || a.GetSubresource() != "" {
		return nil
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(old.Spec.Resources.Requests[corev1.ResourceStorage]) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		//lint:ignore ST1005 upstream's wording
		return admission.NewForbidden(a, fmt.Errorf("Only bound persistent volume claims can be expanded"))
	}
	name := storagehelpers.GetPersistentVolumeClaimClass(claim)
	if name != "" && name == storagehelpers.GetPersistentVolumeClaimClass(old) {
		if class, err := c.classes.Get(name); err == nil && class.AllowVolumeExpansion != nil &&
			*class.AllowVolumeExpansion {
			return nil
		}
	}
	return admission.NewForbidden(a,
		fmt.Errorf(
			"only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
}
