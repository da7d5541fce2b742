package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/barque/barque/internal/localpv"
)

// ownVolume allows to report that the data of a deleted local volume of the node is removed, by
// removing that finalizer. It also allows to record whether its directory is there. It allows
// nothing else: only people declare data lost, by removing that record.
func ownVolume(node string, a admission.Attributes) error {
	now, isNew := a.GetObject().(*corev1.PersistentVolume)
	old, isOld := a.GetOldObject().(*corev1.PersistentVolume)
	if a.GetOperation() != admission.Update || a.GetSubresource() != "" || !isNew || !isOld {
		return fmt.Errorf("is not allowed to %s persistentvolumes", strings.ToLower(string(a.GetOperation())))
	}
	if !localpv.OnNode(old, node) {
		return fmt.Errorf("can only write local volumes that are on it")
	}
	want := old.DeepCopy()
	want.ManagedFields, want.ResourceVersion = now.ManagedFields, now.ResourceVersion
	if old.DeletionTimestamp != nil {
		want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == localpv.Finalizer })
	} else if is := now.Annotations[localpv.DirectoryAnnotation]; is == localpv.Made || is == localpv.Lost {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, localpv.DirectoryAnnotation, is)
	}
	if !apiequality.Semantic.DeepEqual(want, now) {
		return fmt.Errorf(
			"can only remove the finalizer %s of a volume that is deleted, and set the annotation %s of others",
			localpv.Finalizer, localpv.DirectoryAnnotation)
	}
	return nil
}

// sizeOfClaim allows to write the size of a claim's volume and the progress of its expansion.
func sizeOfClaim(a admission.Attributes) error {
	now, isNew := a.GetObject().(*corev1.PersistentVolumeClaim)
	old, isOld := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if a.GetOperation() != admission.Update || a.GetSubresource() != "status" || !isNew || !isOld {
		return fmt.Errorf("may only update PVC status")
	}
	want := old.DeepCopy()
	want.ManagedFields, want.ResourceVersion = now.ManagedFields, now.ResourceVersion
	is, may := &now.Status, &want.Status
	may.Capacity, may.Conditions, may.AllocatedResources, may.AllocatedResourceStatuses =
		is.Capacity, is.Conditions, is.AllocatedResources, is.AllocatedResourceStatuses
	if !apiequality.Semantic.DeepEqual(want, now) {
		return fmt.Errorf("is not allowed to update fields other than status.quantity and status.conditions")
	}
	return nil
}
