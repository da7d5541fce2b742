package persistentvolume

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const (
	volumeMeta = "metadata: {name: v, resourceVersion: '1'}\n"
	claimMeta  = "metadata: {name: c, namespace: default, resourceVersion: '1'}\n"
)

func parseVolume(t *testing.T, spec string) *corev1.PersistentVolume {
	t.Helper()
	v := grouptest.Parse[corev1.PersistentVolume](t, volumeMeta+"spec: {"+spec+"}")
	Volumes().(*resource.Kind[corev1.PersistentVolume]).Default(v)
	return v
}

func TestPersistentVolume(t *testing.T) {
	ctx := context.Background()
	const (
		base = "capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], "
		zone = "nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: failure-domain.beta.kubernetes.io/zone, operator: In, values: [a]}]}]}}, "
	)
	got := parseVolume(t, base+"hostPath: {path: /data}")
	want := grouptest.Parse[corev1.PersistentVolume](t,
		volumeMeta+"spec: {"+base+
			"hostPath: {path: /data, type: ''}, persistentVolumeReclaimPolicy: Retain, volumeMode: Filesystem}\nstatus: {phase: Pending}")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	grouptest.WantErrors(t, validateVolume(ctx, got, nil))

	old := parseVolume(t, base+zone+"csi: {driver: d, volumeHandle: h}")
	for name, c := range map[string]struct {
		change func(s *corev1.PersistentVolumeSpec)
		want   []string
	}{
		"claim": {func(s *corev1.PersistentVolumeSpec) { s.ClaimRef = &corev1.ObjectReference{Name: "c"} }, nil},
		"expand": {func(s *corev1.PersistentVolumeSpec) {
			s.CSI.ControllerExpandSecretRef = &corev1.SecretReference{Name: "s", Namespace: "n"}
		}, nil},
		"GA label": {func(s *corev1.PersistentVolumeSpec) {
			s.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = corev1.LabelTopologyZone
		}, nil},
		"label": {func(s *corev1.PersistentVolumeSpec) {
			s.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = "other"
		}, []string{grouptest.Invalid + "nodeAffinity"}},
		"affinity": {func(s *corev1.PersistentVolumeSpec) { s.NodeAffinity = nil },
			[]string{grouptest.Invalid + "nodeAffinity"}},
		"source": {func(s *corev1.PersistentVolumeSpec) { s.CSI.VolumeHandle = "other" },
			[]string{grouptest.Forbidden + "spec.persistentvolumesource"}},
		"mode": {func(s *corev1.PersistentVolumeSpec) { s.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
			[]string{grouptest.Invalid + "volumeMode"}},
		"class": {func(s *corev1.PersistentVolumeSpec) { s.VolumeAttributesClassName = ptr.To("gold") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := old.DeepCopy()
			c.change(&v.Spec)
			grouptest.WantErrors(t, validateVolume(ctx, v, old), c.want...)
		})
	}
	classed := old.DeepCopy()
	classed.Spec.VolumeAttributesClassName = ptr.To("gold")
	grouptest.WantErrors(t, validateVolume(ctx, old, classed), grouptest.Forbidden+"spec.volumeAttributesClassName")

	old.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "n", Name: "c"}
	old.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "old", mountOptionsAnnotation: "ro"}
	old.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, Volumes(), old, "v", "1Gi", "RWO", "Retain", "Pending", "n/c", "old", "<unset>", "",
		"60s", "Filesystem")
	if w := volumeWarnings(ctx, old, nil); len(w) != 3 ||
		!strings.HasPrefix(w[2], "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: ") {
		t.Errorf("warnings: %q", w)
	}
}

func TestPersistentVolumePhase(t *testing.T) {
	kind := Volumes().(*resource.Kind[corev1.PersistentVolume])
	v := parseVolume(t, "")
	kind.Prepare(context.Background(), v, nil)
	if v.Status.LastPhaseTransitionTime.IsZero() {
		t.Error("a new volume has no transition time")
	}
	before, now, given := metav1.Unix(1, 0), metav1.Unix(2, 0), metav1.Unix(3, 0)
	for name, c := range map[string]struct {
		phase corev1.PersistentVolumePhase
		given *metav1.Time
		want  metav1.Time
	}{
		"same phase":    {corev1.VolumePending, nil, before},
		"new phase":     {corev1.VolumeBound, nil, now},
		"old time":      {corev1.VolumeBound, &before, now},
		"client's time": {corev1.VolumeBound, &given, given},
	} {
		old := corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &before}
		s := corev1.PersistentVolumeStatus{Phase: c.phase, LastPhaseTransitionTime: c.given}
		stampPhase(&s, &old, now)
		if !s.LastPhaseTransitionTime.Equal(&c.want) {
			t.Errorf("%s: %v, want %v", name, s.LastPhaseTransitionTime, c.want)
		}
	}
	v.ResourceVersion = ""
	grouptest.WantErrors(t, kind.Status.Validate(context.Background(), v, v), grouptest.Missing+"resourceVersion")
}

const claimSpec = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}"

func parseClaim(t *testing.T, spec string) *corev1.PersistentVolumeClaim {
	t.Helper()
	c := grouptest.Parse[corev1.PersistentVolumeClaim](t, claimMeta+"spec: {"+spec+"}")
	Claims().(*resource.Kind[corev1.PersistentVolumeClaim]).Default(c)
	return c
}

func TestValidateClaim(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good": {
			claimSpec + ", storageClassName: gold, volumeAttributesClassName: fast, selector: {matchLabels: {a: b}}",
			nil},
		"no class": {claimSpec + ", storageClassName: ''", nil},
		"nothing": {"",
			[]string{grouptest.Missing + "spec.accessModes", grouptest.Missing + "spec.resources[storage]"}},
		"modes": {
			"accessModes: [ReadWriteOncePod, ReadOnlyMany, Often], resources: {requests: {storage: 1Gi}}",
			[]string{grouptest.Unknown + "spec.accessModes", grouptest.Forbidden + "spec.accessModes"}},
		"size": {"accessModes: [ReadWriteOnce], resources: {requests: {storage: 0}}",
			[]string{grouptest.Invalid + "spec.resources[storage]"}},
		"classes": {claimSpec + ", storageClassName: A, volumeAttributesClassName: B",
			[]string{grouptest.Invalid + "spec.storageClassName",
				grouptest.Invalid + "spec.volumeAttributesClassName"}},
		"volume mode": {claimSpec + ", volumeMode: Tape", []string{grouptest.Unknown + "spec.volumeMode"}},
		"selector": {claimSpec + ", selector: {matchLabels: {a: 'b c'}}",
			[]string{grouptest.Invalid + "spec.selector.matchLabels"}},
		"clone": {claimSpec + ", dataSource: {kind: PersistentVolumeClaim, name: a}", nil},
		"source": {claimSpec + ", dataSourceRef: {kind: Backup}",
			[]string{grouptest.Missing + "spec.dataSource.name", grouptest.Missing + "spec.dataSourceRef.name",
				grouptest.Invalid + "spec.dataSource", grouptest.Invalid + "spec.dataSourceRef"}},
		"source's group": {claimSpec + ", dataSourceRef: {apiGroup: A, kind: Backup, name: a}",
			[]string{grouptest.Invalid + "spec.dataSource.apiGroup",
				grouptest.Invalid + "spec.dataSourceRef.apiGroup"}},
		"two sources": {
			claimSpec +
				", dataSource: {kind: PersistentVolumeClaim, name: a}, dataSourceRef: {kind: PersistentVolumeClaim, name: b}", []string{grouptest.Invalid + "spec"}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := parseClaim(t, c.spec)
			prepareClaim(context.Background(), claim, nil)
			grouptest.WantErrors(t, validateClaim(context.Background(), claim, nil), c.want...)
		})
	}
}

func TestClaimSources(t *testing.T) {
	ctx := context.Background()
	for in, want := range map[string]string{
		", dataSource: {kind: PersistentVolumeClaim, name: a}":                             ", dataSource: {kind: PersistentVolumeClaim, name: a}, dataSourceRef: {kind: PersistentVolumeClaim, name: a}",
		", dataSourceRef: {apiGroup: example.com, kind: Backup, name: a}":                  ", dataSource: {apiGroup: example.com, kind: Backup, name: a}, dataSourceRef: {apiGroup: example.com, kind: Backup, name: a}",
		", dataSource: {apiGroup: example.com, kind: Backup, name: a}":                     "",
		", dataSourceRef: {kind: PersistentVolumeClaim, name: a, namespace: other}":        "",
		", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: a}": ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: a}, dataSourceRef: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: a}",
	} {
		got := parseClaim(t, claimSpec+in)
		prepareClaim(ctx, got, nil)
		if diff := cmp.Diff(parseClaim(t, claimSpec+want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
		again := got.DeepCopy()
		prepareClaim(ctx, again, got)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Errorf("%s: not idempotent:\n%s", in, diff)
		}
	}
}

func TestClaimChanges(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		bound    bool
		old, new string
		want     []string
	}{
		"volume": {false, claimSpec, claimSpec + ", volumeName: v", nil},
		"other volume": {true, claimSpec + ", volumeName: v", claimSpec + ", volumeName: w",
			[]string{grouptest.Forbidden + "spec"}},
		"class": {false, claimSpec, claimSpec + ", storageClassName: a", nil},
		"other class": {false, claimSpec + ", storageClassName: a", claimSpec + ", storageClassName: b",
			[]string{grouptest.Forbidden + "spec"}},
		"grow unbound": {false, claimSpec, "accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}",
			[]string{grouptest.Forbidden + "spec"}},
		"grow": {true, claimSpec, "accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}",
			nil},
		"shrink": {true, claimSpec, "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}",
			[]string{grouptest.Forbidden + "spec.resources.requests.storage"}},
		"shrink to growth": {true, "accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}",
			"accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}", nil},
		"attributes": {true, claimSpec + ", volumeAttributesClassName: a",
			claimSpec + ", volumeAttributesClassName: b", nil},
		"no attributes": {true, claimSpec + ", volumeAttributesClassName: a", claimSpec,
			[]string{grouptest.Forbidden + "spec.volumeAttributesClassName"}},
		"mode": {true, claimSpec, claimSpec + ", volumeMode: Block",
			[]string{grouptest.Forbidden + "spec", grouptest.Invalid + "volumeMode"}},
	} {
		t.Run(name, func(t *testing.T) {
			old, claim := parseClaim(t, c.old), parseClaim(t, c.new)
			if c.bound {
				old.Status = grouptest.Parse[corev1.PersistentVolumeClaim](t,
					"status: {phase: Bound, capacity: {storage: 1Gi}, currentVolumeAttributesClassName: a}").Status
			}
			claim.Status = old.Status
			grouptest.WantErrors(t, validateClaim(ctx, claim, old), c.want...)
		})
	}
	old := parseClaim(t, claimSpec)
	old.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "a"}
	claim := parseClaim(t, claimSpec)
	grouptest.WantErrors(t, validateClaim(ctx, claim, old),
		grouptest.Invalid+"metadata.annotations.volume.beta.kubernetes.io/storage-class")
	claim.Spec.StorageClassName = ptr.To("a") // the annotation has become the field
	grouptest.WantErrors(t, validateClaim(ctx, claim, old))
}

func TestClaimStatusRowAndWarnings(t *testing.T) {
	ctx := context.Background()
	claim := parseClaim(t,
		"accessModes: [ReadWriteOnce], resources: {requests: {storage: 1500m}}, volumeName: v, storageClassName: gold")
	claim.Status = grouptest.Parse[corev1.PersistentVolumeClaim](t,
		"status: {phase: Bound, accessModes: [ReadWriteMany, ReadWriteOnce], capacity: {storage: 2Gi}, allocatedResources: {storage: 3Gi}, allocatedResourceStatuses: {storage: NodeResizePending}}").Status
	grouptest.WantErrors(t, validateClaimStatus(ctx, claim, claim))
	claim.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, Claims(), claim, "c", "Bound", "v", "2Gi", "RWO,RWX", "gold", "<unset>", "60s",
		"Filesystem")
	if w := claimWarnings(ctx, claim, nil); len(w) != 1 ||
		!strings.HasPrefix(w[0], "spec.resources.requests[storage]: fractional") {
		t.Errorf("warnings: %q", w)
	}
	bad := grouptest.Parse[corev1.PersistentVolumeClaim](t,
		"status: {capacity: {storage: -1}, allocatedResources: {cpu: 1, storage: -1}, allocatedResourceStatuses: {memory: NodeResizePending, storage: Maybe}}")
	grouptest.WantErrors(t, validateClaimStatus(ctx, bad, claim), grouptest.Missing+"resourceVersion",
		grouptest.Invalid+"status.capacity[storage]",
		grouptest.Unknown+"status.allocatedResources", grouptest.Invalid+"status.allocatedResources[storage]",
		grouptest.Unknown+"status.allocatedResourceStatuses", grouptest.Unknown+"status.allocatedResourceStatuses")
}
