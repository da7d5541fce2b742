package volume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const base = "capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], "

func TestValidateSpec(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"host path": {base + "hostPath: {path: /a}", nil},
		"local": {
			base +
				"local: {path: /a}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}", nil},
		"NFS": {base + "nfs: {server: s, path: /a}", nil},
		"CSI": {
			base +
				"csi: {driver: Example.com, volumeHandle: h, nodeStageSecretRef: {}, nodePublishSecretRef: {name: a, namespace: b}}, volumeAttributesClassName: gold", nil},
		"iSCSI": {base + "iscsi: {targetPortal: p, iqn: 'iqn.2020-01.com.example:a', lun: 5}", nil},
		"FC":    {base + "fc: {targetWWNs: [a], lun: 0}", nil},
		"empty": {"",
			[]string{grouptest.Missing + "spec", grouptest.Missing + "spec.accessModes",
				grouptest.Missing + "spec.capacity", grouptest.Unknown + "spec.capacity"}},
		"two": {base + "hostPath: {path: /a}, nfs: {server: s, path: /a}",
			[]string{grouptest.Forbidden + "spec.nfs"}},
		"capacity": {"capacity: {storage: -1, cpu: 1}, accessModes: [ReadWriteOnce], hostPath: {path: /a}",
			[]string{grouptest.Unknown + "spec.capacity", grouptest.Invalid + "spec.capacity[storage]"}},
		"policy": {base + "hostPath: {path: /a}, persistentVolumeReclaimPolicy: Keep",
			[]string{grouptest.Unknown + "spec.persistentVolumeReclaimPolicy"}},
		"recycle root": {base + "hostPath: {path: /}, persistentVolumeReclaimPolicy: Recycle",
			[]string{grouptest.Forbidden + "spec.persistentVolumeReclaimPolicy"}},
		"affinity": {base + "hostPath: {path: /a}, nodeAffinity: {}",
			[]string{grouptest.Missing + "spec.nodeAffinity.required"}},
		"class": {base + "hostPath: {path: /a}, storageClassName: A",
			[]string{grouptest.Invalid + "spec.storageClassName"}},
		"mode": {base + "hostPath: {path: /a}, volumeMode: Tape",
			[]string{grouptest.Unknown + "spec.volumeMode"}},
		"attributes": {base + "hostPath: {path: /a}, volumeAttributesClassName: ''",
			[]string{grouptest.Missing + "spec.volumeAttributesClassName", grouptest.Missing + "spec.csi"}},
		"host path bad": {base + "hostPath: {path: /a/../b, type: Tape}",
			[]string{grouptest.Invalid + "spec.hostPath.path", grouptest.Unknown + "spec.hostPath.type"}},
		"local bad": {base + "local: {path: ../a}",
			[]string{grouptest.Invalid + "spec.local.path", grouptest.Missing + "spec.nodeAffinity"}},
		"NFS bad": {base + "nfs: {path: a}",
			[]string{grouptest.Missing + "spec.nfs.server", grouptest.Invalid + "spec.nfs.path"}},
		"CSI bad": {base + "csi: {driver: a_b, nodeExpandSecretRef: {}}",
			[]string{grouptest.Invalid + "spec.csi.driver", grouptest.Missing + "spec.csi.volumeHandle",
				grouptest.Missing + "spec.csi.nodeExpandSecretRef.name",
				grouptest.Missing + "spec.csi.nodeExpandSecretRef.namespace"}},
		"CSI driver": {base + "csi: {driver: " + strings.Repeat("a", 64) + ", volumeHandle: h}",
			[]string{grouptest.TooLong + "spec.csi.driver", grouptest.Invalid + "spec.csi.driver"}[:1]},
		"iSCSI bad": {base + "iscsi: {iqn: a, lun: 256, chapAuthSession: true, initiatorName: b}",
			[]string{grouptest.Missing + "spec.iscsi.targetPortal", grouptest.Invalid + "spec.iscsi.iqn",
				grouptest.Invalid + "spec.iscsi.lun", grouptest.Missing + "spec.iscsi.secretRef",
				grouptest.Invalid + "spec.iscsi.initiatorname"}},
		"FC none": {base + "fc: {}", []string{grouptest.Missing + "spec.fc.targetWWNs"}},
		"FC both": {base + "fc: {targetWWNs: [a], wwids: [b]}",
			[]string{grouptest.Invalid + "spec.fc.targetWWNs", grouptest.Missing + "spec.fc.lun"}},
		"removed": {base + "awsElasticBlockStore: {}",
			[]string{grouptest.Missing + "spec.awsElasticBlockStore.volumeID"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := grouptest.Parse[corev1.PersistentVolumeSpec](t, "{"+c.spec+"}")
			Default(spec)
			grouptest.WantErrors(t, ValidateSpec(spec, "v", field.NewPath("spec")), c.want...)
		})
	}
}

func TestValidateInlineSpec(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good": {"accessModes: [ReadWriteOnce], csi: {driver: d, volumeHandle: h}", nil},
		"fields": {
			"accessModes: [ReadWriteOnce], csi: {driver: d, volumeHandle: h}, claimRef: {}, capacity: {storage: 1}, nodeAffinity: {}, storageClassName: a", []string{grouptest.Forbidden + "x.claimRef", grouptest.Forbidden + "x.capacity", grouptest.Forbidden + "x.nodeAffinity", grouptest.Forbidden + "x.storageClassName"}},
		"not CSI": {"accessModes: [ReadWriteOnce], hostPath: {path: /a}", []string{grouptest.Missing + "x.csi"}},
		"values": {
			"accessModes: [ReadWriteOnce], csi: {driver: d, volumeHandle: h}, persistentVolumeReclaimPolicy: Delete, volumeMode: Block", []string{grouptest.Forbidden + "x.persistentVolumeReclaimPolicy", grouptest.Forbidden + "x.volumeMode"}},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t,
				ValidateInlineSpec(grouptest.Parse[corev1.PersistentVolumeSpec](t, "{"+c.spec+"}"), field.NewPath("x")),
				c.want...)
		})
	}
}

func TestWarnings(t *testing.T) {
	spec := grouptest.Parse[corev1.PersistentVolumeSpec](t,
		"{persistentVolumeReclaimPolicy: Recycle, rbd: {monitors: [a], image: b}}")
	w := Warnings(spec, field.NewPath("spec"))
	if len(w) != 2 || w[1] != "spec.rbd: deprecated in v1.28, non-functional in v1.31+" {
		t.Errorf("warnings: %q", w)
	}
}
