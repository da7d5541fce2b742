package localprovisioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/localpv"
)

const (
	// markName is a ConfigMap in kube-system that says that the default class was laid down.
	markName = "barque-default-storage-class"
	// defaultAnnotation marks the class of claims that name none.
	defaultAnnotation = "storageclass.kubernetes.io/is-default-class"
	layDownRetry      = 2 * time.Second
)

// layDown creates the default class and the provisioner's CSIDriver, once in the life of the
// cluster: later changes and deletions by users stay. It retries until it succeeds, and returns
// when ctx ends.
func (t *term) layDown(ctx context.Context) error {
	for t.cfg.DefaultClass != "" {
		err := t.layDownOnce(ctx)
		if err == nil || ctx.Err() != nil {
			break
		}
		t.cfg.Logger.Warn("cannot lay down the default storage class; trying again", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(layDownRetry):
		}
	}
	<-ctx.Done()
	return nil
}

func (t *term) layDownOnce(ctx context.Context) error {
	marks := t.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if _, err := marks.Get(ctx, markName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	existing, err := t.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	class := defaultClass(t.cfg.DefaultClass, existing.Items)
	_, classErr := t.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	_, driverErr := t.client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: localpv.Provisioner},
		Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false), StorageCapacity: ptr.To(true),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}},
	}, metav1.CreateOptions{})
	for _, err := range []error{classErr, driverErr} {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("laying down StorageClass %s: %w", class.Name, errors.Join(classErr, driverErr))
		}
	}
	_, err = marks.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: markName},
		Data:       map[string]string{"class": class.Name},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// defaultClass is the class of local volumes. It is the default one unless the cluster has another.
func defaultClass(name string, existing []storagev1.StorageClass) *storagev1.StorageClass {
	class := &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: name, Annotations: map[string]string{defaultAnnotation: "true"}},
		Provisioner:          localpv.Provisioner,
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: ptr.To(true),
	}
	for i := range existing {
		if existing[i].Annotations[defaultAnnotation] == "true" {
			delete(class.Annotations, defaultAnnotation)
		}
	}
	return class
}
