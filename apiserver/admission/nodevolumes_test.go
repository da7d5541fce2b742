package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/barque/barque/internal/localpv"
)

// TestOwnVolume: a node takes its finalizer off its own volumes that go, and writes nothing else.
func TestOwnVolume(t *testing.T) {
	volume := func(node string, changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name: "pv", Labels: map[string]string{localpv.NodeLabel: node}, Annotations: map[string]string{localpv.ProvisionedBy: localpv.Provisioner},
				Finalizers: []string{"other", localpv.Finalizer}, DeletionTimestamp: &metav1.Time{},
			},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/v/pv"}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
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
	relabelled := func(v *corev1.PersistentVolume) { v.Labels[localpv.NodeLabel] = "n1" }
	for _, c := range []struct {
		name string
		r    request
		ok   bool
	}{
		{"says that the data is gone", update(volume("n1"), volume("n1", done)), true},
		{"of another node's volume", update(volume("n2"), volume("n2", done)), false},
		{"of another's that is labelled as its own", update(volume("n2", relabelled), volume("n2", relabelled, done)), false},
		{"of one that stays", update(volume("n1", func(v *corev1.PersistentVolume) { v.DeletionTimestamp = nil }), volume("n1", done)), false},
		{"and of other finalizers", update(volume("n1"), volume("n1", done, func(v *corev1.PersistentVolume) { v.Finalizers = nil })), false},
		{"and changes a label", update(volume("n1"), volume("n1", done, func(v *corev1.PersistentVolume) { v.Labels["a"] = "b" })), false},
		{"and changes the path", update(volume("n1"), volume("n1", done, func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/" })), false},
		{"writes the status", status, false},
		{"makes a volume", request{obj: volume("n1"), resource: "persistentvolumes", name: "pv"}, false},
		{"deletes its volume", request{old: volume("n1"), resource: "persistentvolumes", name: "pv", op: admission.Delete}, false},
	} {
		if err := ownVolume("n1", c.r.attributes()); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
