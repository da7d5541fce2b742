package adminapi

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/localpv"
)

func TestLost(t *testing.T) {
	volume := func(name, directory string, changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{localpv.NodeLabel: "n"},
				Annotations: map[string]string{localpv.ProvisionedBy: localpv.Provisioner,
					localpv.DirectoryAnnotation: directory}}}
		pv.Spec.Local = &corev1.LocalVolumeSource{Path: "/v/" + name}
		for _, change := range changes {
			change(pv)
		}
		return pv
	}
	got := Lost([]*corev1.PersistentVolume{
		volume("b", localpv.Lost, func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c"}
		}),
		volume("a", localpv.Lost), volume("made", localpv.Made), volume("new", ""),
		volume("deleted", localpv.Lost,
			func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }),
		volume("another's", localpv.Lost,
			func(v *corev1.PersistentVolume) { v.Annotations[localpv.ProvisionedBy] = "x" }),
	})
	want := []clusterstatus.LostVolume{{Name: "a", Node: "n", Path: "/v/a"},
		{Name: "b", Node: "n", Path: "/v/b", Claim: "ns/c"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}
