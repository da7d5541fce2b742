package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/barque/barque/internal/localpv"
)

// TestOwnVolume: a node takes its finalizer off its own volumes that go, records whether the
// directory of others is there, and writes nothing else.
func TestOwnVolume(t *testing.T) {
	volume := func(node string, changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name: "pv", Labels: map[string]string{localpv.NodeLabel: node},
				Annotations: map[string]string{localpv.ProvisionedBy: localpv.Provisioner},
				Finalizers:  []string{"other", localpv.Finalizer}, DeletionTimestamp: &metav1.Time{},
			},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/v/pv"}},
				NodeAffinity: &corev1.VolumeNodeAffinity{
					Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{
							{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
					}}}},
			},
		}
		for _, change := range changes {
			change(v)
		}
		return v
	}
	done := func(v *corev1.PersistentVolume) {
		v.Finalizers, v.ResourceVersion = []string{"other"}, "2"
		v.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "barque"}}
	}
	update := func(old, now *corev1.PersistentVolume) request {
		return request{obj: now, old: old, resource: "persistentvolumes", name: "pv", op: admission.Update}
	}
	status := update(volume("n1"), volume("n1", done))
	status.subresource = "status"
	stays := func(v *corev1.PersistentVolume) { v.DeletionTimestamp = nil }
	directory := func(is string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Annotations[localpv.DirectoryAnnotation] = is }
	}
	relabelled := func(v *corev1.PersistentVolume) { v.Labels[localpv.NodeLabel] = "n1" }
	for _, c := range []struct {
		name string
		r    request
		ok   bool
	}{
		{"says that the data is gone", update(volume("n1"), volume("n1", done)), true},
		{"of another node's volume", update(volume("n2"), volume("n2", done)), false},
		{"of another's that is labelled as its own", update(volume("n2", relabelled), volume("n2", relabelled, done)),
			false},
		{"records that the directory is there",
			update(volume("n1", stays), volume("n1", stays, directory(localpv.Made))), true},
		{"records that the directory is gone",
			update(volume("n1", stays, directory(localpv.Made)), volume("n1", stays, directory(localpv.Lost))), true},
		{"records that the directory is back",
			update(volume("n1", stays, directory(localpv.Lost)), volume("n1", stays, directory(localpv.Made))), true},
		{"declares the data lost", update(volume("n1", stays, directory(localpv.Lost)), volume("n1", stays)), false},
		{"records something else", update(volume("n1", stays), volume("n1", stays, directory("fine"))), false},
		{"records of another node's directory",
			update(volume("n2", stays), volume("n2", stays, directory(localpv.Made))), false},
		{"records and changes the path",
			update(volume("n1", stays),
				volume("n1", stays, directory(localpv.Made),
					func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/" })), false},
		{"records, and takes its finalizer off one that stays",
			update(volume("n1", stays), volume("n1", stays, done, directory(localpv.Made))), false},
		{"of one that stays",
			update(volume("n1", func(v *corev1.PersistentVolume) { v.DeletionTimestamp = nil }), volume("n1", done)),
			false},
		{"and of other finalizers",
			update(volume("n1"), volume("n1", done, func(v *corev1.PersistentVolume) { v.Finalizers = nil })), false},
		{"and changes a label",
			update(volume("n1"), volume("n1", done, func(v *corev1.PersistentVolume) { v.Labels["a"] = "b" })), false},
		{"and changes the path",
			update(volume("n1"), volume("n1", done, func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/" })),
			false},
		{"writes the status", status, false},
		{"makes a volume", request{obj: volume("n1"), resource: "persistentvolumes", name: "pv"}, false},
		{"deletes its volume",
			request{old: volume("n1"), resource: "persistentvolumes", name: "pv", op: admission.Delete}, false},
	} {
		if err := ownVolume("n1", c.r.attributes()); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestNodeSizesOfClaims(t *testing.T) {
	claim := func(changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns", ResourceVersion: "1"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}
		for _, change := range changes {
			change(c)
		}
		return c
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	grown := func(c *corev1.PersistentVolumeClaim) {
		c.ResourceVersion, c.ManagedFields = "2", []metav1.ManagedFieldsEntry{{Manager: "barque"}}
		c.Status.Capacity, c.Status.AllocatedResources = size, size
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizeInProgress}
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimNodeResizeError}}
	}
	on := func(subresource string, op admission.Operation, now *corev1.PersistentVolumeClaim) request {
		return request{obj: now, old: claim(), resource: "persistentvolumeclaims", subresource: subresource, name: "c",
			op: op}
	}
	for _, c := range []struct {
		name string
		r    request
		ok   bool
	}{
		{"says how large it is", on("status", admission.Update, claim(grown)), true},
		{"and changes the phase",
			on("status", admission.Update,
				claim(grown, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })), false},
		{"and changes a label",
			on("status", admission.Update,
				claim(grown, func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} })), false},
		{"and changes the volume",
			on("status", admission.Update,
				claim(grown, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "x" })), false},
		{"writes the claim itself", on("", admission.Update, claim(grown)), false},
		{"makes a claim", on("", admission.Create, claim()), false},
	} {
		if err := sizeOfClaim(c.r.attributes()); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
