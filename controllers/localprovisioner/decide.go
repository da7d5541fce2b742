package localprovisioner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/localpv"
)

// Upstream's annotations of claims.
const (
	provisionerAnnotation     = "volume.kubernetes.io/storage-provisioner"
	betaProvisionerAnnotation = "volume.beta.kubernetes.io/storage-provisioner"
	selectedNodeAnnotation    = "volume.kubernetes.io/selected-node"
	betaClassAnnotation       = "volume.beta.kubernetes.io/storage-class"
)

const pvProtection = "kubernetes.io/pv-protection"

// claimPlan is the change for a claim. At most one of its fields is set.
type claimPlan struct {
	create *corev1.PersistentVolume
	// failure goes into an event of the claim.
	failure string
	// reselect removes the selected node because of failure: the scheduler chooses another one.
	reselect bool
}

// ours reports whether the binder has given a claim to this provisioner, which has not made its
// volume yet.
func ours(claim *corev1.PersistentVolumeClaim) bool {
	name, ok := claim.Annotations[provisionerAnnotation]
	if !ok {
		name = claim.Annotations[betaProvisionerAnnotation]
	}
	return name == localpv.Provisioner && claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil
}

func className(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[betaClassAnnotation]; ok {
		return name
	}
	return ptr.Deref(claim.Spec.StorageClassName, "")
}

// volumeName is as upstream: a second attempt for a claim finds the volume of the first.
func volumeName(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// decideClaim plans for a claim of ours. node is the selected one, or nil when it is not there.
func decideClaim(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node) claimPlan {
	if class == nil || class.Provisioner != localpv.Provisioner {
		return claimPlan{}
	}
	if why := unsupported(claim, class); why != "" {
		return claimPlan{failure: why}
	}
	selected := claim.Annotations[selectedNodeAnnotation]
	if selected == "" {
		if ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingImmediate {
			return claimPlan{
				failure: "a local volume is made on the node of its first pod: the class needs volumeBindingMode WaitForFirstConsumer"}
		}
		return claimPlan{} // no pod wants it yet
	}
	switch {
	case node == nil || node.DeletionTimestamp != nil:
		return claimPlan{failure: fmt.Sprintf("node %q is not there", selected), reselect: true}
	case node.Annotations[localpv.RootAnnotation] == "":
		return claimPlan{
			failure: fmt.Sprintf("node %q has no local volumes: it lacks the annotation %s", selected,
				localpv.RootAnnotation), reselect: true}
	case node.Labels[corev1.LabelHostname] != node.Name:
		return claimPlan{
			failure: fmt.Sprintf("node %q cannot be told by its label %s, which is %q", selected, corev1.LabelHostname,
				node.Labels[corev1.LabelHostname]), reselect: true}
	}
	return claimPlan{create: newVolume(claim, class, node)}
}

// unsupported returns the claim's feature that local volumes lack, or "".
func unsupported(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	switch {
	case claim.Spec.Selector != nil:
		return "claim Selector is not supported"
	case claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil:
		return "local volumes are made empty: dataSource and dataSourceRef are not supported"
	case ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeFilesystem:
		return "local volumes are directories: volumeMode Block is not supported"
	case len(class.MountOptions) > 0:
		return "local volumes are directories: mountOptions are not supported"
	case len(class.Parameters) > 0:
		return "unknown parameters of the class: " + strings.Join(slices.Sorted(maps.Keys(class.Parameters)), ", ")
	}
	for _, mode := range claim.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return fmt.Sprintf(
				"a local volume is on one node: access mode %s is not supported, only ReadWriteOnce and ReadWriteOncePod", mode)
		}
	}
	return ""
}

func newVolume(
	claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node,
) *corev1.PersistentVolume {
	name := volumeName(claim)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{localpv.NodeLabel: node.Name},
			Annotations: map[string]string{localpv.ProvisionedBy: localpv.Provisioner},
			Finalizers:  []string{localpv.Finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			StorageClassName:              class.Name,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: localpv.Path(node.Annotations[localpv.RootAnnotation], name)},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{
						Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Name},
					}},
				}}}},
		},
	}
}

// volumeAct is the change for a volume.
type volumeAct int

const (
	nothing volumeAct = iota
	// deleteVolume deletes the object of a volume whose claim has gone. Its node deletes the data
	// then.
	deleteVolume
	// abandon takes the finalizer off a volume whose node is not in the cluster any more.
	abandon
	// grow gives a volume the size that its claim asks for.
	grow
	// tellGrown writes the volume's size into the claim.
	tellGrown
)

// decideVolume plans for a volume that this provisioner has made. claim is the one that it is bound
// to, or nil.
func decideVolume(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, hasNode bool) volumeAct {
	if volume.DeletionTimestamp != nil {
		mine := slices.Contains(volume.Finalizers, localpv.Finalizer)
		if mine && !hasNode && volume.Status.Phase != corev1.VolumeBound &&
			!slices.Contains(volume.Finalizers, pvProtection) {
			return abandon
		}
		return nothing
	}
	if volume.Status.Phase == corev1.VolumeReleased &&
		volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return deleteVolume
	}
	if claim == nil || claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound ||
		claim.Spec.VolumeName != volume.Name ||
		volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return nothing
	}
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], volume.Spec.Capacity[corev1.ResourceStorage]
	told := claim.Status.Capacity[corev1.ResourceStorage]
	switch {
	case asked.Cmp(has) > 0:
		return grow
	case told.Cmp(has) < 0:
		return tellGrown
	}
	return nothing
}
