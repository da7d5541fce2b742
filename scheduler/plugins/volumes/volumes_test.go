package volumes_test

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storage "k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins"
	"github.com/barque/barque/scheduler/plugins/names"
	"github.com/barque/barque/scheduler/plugins/plugintest"
)

// The makers of a world's objects.
var (
	aNode    = plugintest.Node
	labelled = plugintest.Labelled
	aPod     = plugintest.Pod
	on       = plugintest.On
	argsFor  = plugintest.ArgsFor
)

func newWorld(t testing.TB, objects []any, enabled ...string) *plugintest.World {
	return plugintest.New(t, plugins.Registry(), objects, enabled...)
}

func aClaim(name, class, size string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: plugintest.List("storage", size)},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func has(volume string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeName = volume
		c.Status.Phase = v1.ClaimBound
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, storage.AnnBindCompleted, "yes")
	}
}

func selected(node string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, storage.AnnSelectedNode, node)
	}
}

func oncePodMode(c *v1.PersistentVolumeClaim) {
	c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
}

func aVolume(name, class, size string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	v := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
			Labels: map[string]string{}},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: class,
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteOncePod},
			Capacity:         plugintest.List("storage", size),
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func onlyOn(nodes ...string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) {
		v.Spec.NodeAffinity = &v1.VolumeNodeAffinity{
			Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
				{MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: nodes}}},
			}}}
	}
}

func zoned(value string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) { v.Labels[v1.LabelTopologyZone] = value }
}

func csi(driver, handle string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) {
		v.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	}
}

func aClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: &mode}
}

func late(name, provisioner string) *storagev1.StorageClass {
	return aClass(name, provisioner, storagev1.VolumeBindingWaitForFirstConsumer)
}

func capacity(class, node, size string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "x", Name: class + "-" + node},
		StorageClassName: class, Capacity: ptr.To(resource.MustParse(size)),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: node}},
	}
}

func telling(driver string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}
}

// wanting is a driver whose volumes keep pods off nodes without it.
func wanting(driver string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: ptr.To(true)}}
}

func takes(node, driver string, count int32) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: &count}},
		}}}
}

// using is a pod with claims.
func using(claims ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, c := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: c, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
		}
	}
}

func iscsi(readOnly bool) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes,
			v1.Volume{Name: "disk",
				VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{IQN: "iqn.x", ReadOnly: readOnly}}})
	}
}

var volumePlugins = []string{names.VolumeRestrictions, names.NodeVolumeLimits, names.VolumeBinding, names.VolumeZone}

// verdict returns why a pod cannot run on any node ("*"), or on each.
func verdict(t testing.TB, w *plugintest.World, pod *v1.Pod) map[string]string {
	t.Helper()
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	nodes, _ := w.Snapshot.List()
	if _, _, s := w.Profile.PreFilter(t.Context(), framework.NewCycleStateFor(info), pod, nodes); !s.IsSuccess() {
		return map[string]string{"*": s.Message()}
	}
	out, _, _ := w.Filter(pod)
	return out
}

func TestVolumeFilters(t *testing.T) {
	const (
		noVolume  = "node(s) didn't find available persistent volumes to bind"
		elsewhere = "node(s) had volume node affinity conflict"
		noSpace   = "node(s) did not have enough free storage"
		missing   = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
		zone      = "node(s) had no available volume zone"
		tooMany   = "node(s) exceed max volume count"
		inUse     = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
		noDisk    = "node(s) had no available disk"
	)
	nodes := []any{aNode("a", labelled(v1.LabelTopologyZone, "1")), aNode("b", labelled(v1.LabelTopologyZone, "2"))}
	static, dynamic := late("static", "kubernetes.io/no-provisioner"), late("dynamic", "example.com/csi")
	everywhere := func(why string) map[string]string { return map[string]string{"a": why, "b": why} }
	ofPod := func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "c", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
	}
	topology := dynamic.DeepCopy()
	topology.AllowedTopologies = []v1.TopologySelectorTerm{
		{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: v1.LabelTopologyZone, Values: []string{"2", "3"}}}}}
	for name, c := range map[string]struct {
		world []any
		pod   *v1.Pod
		want  map[string]string
	}{
		"no volumes": {nil, aPod("p"), everywhere("")},
		"no claim": {nil, aPod("p", using("c")),
			map[string]string{"*": `persistentvolumeclaim "c" not found`}},
		"no claim yet": {nil, aPod("p", ofPod),
			map[string]string{
				"*": `waiting for ephemeral volume controller to create the persistentvolumeclaim "p-c"`}},
		"somebody's claim": {[]any{aClaim("p-c", "", "1Gi")}, aPod("p", ofPod),
			map[string]string{"*": `PVC default/p-c was not created for pod default/p (pod is not owner)`}},
		"claim that goes": {
			[]any{
				aClaim("c", "", "1Gi", has("v"),
					func(c *v1.PersistentVolumeClaim) { c.DeletionTimestamp = ptr.To(metav1.Now()) }),
				aVolume("v", "", "1Gi")}, aPod("p", using("c")),
			map[string]string{"*": `persistentvolumeclaim "c" is being deleted`}},
		"lost claim": {
			[]any{aClaim("c", "", "1Gi", has("v"), func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimLost }),
				aVolume("v", "", "1Gi")}, aPod("p", using("c")),
			map[string]string{"*": `persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`}},
		"unbound": {[]any{aClaim("c", "", "1Gi")}, aPod("p", using("c")),
			map[string]string{"*": "pod has unbound immediate PersistentVolumeClaims"}},
		"unbound, by class": {[]any{aClaim("c", "fast", "1Gi"), aClass("fast", "x", storagev1.VolumeBindingImmediate)},
			aPod("p", using("c")), map[string]string{"*": "pod has unbound immediate PersistentVolumeClaims"}},
		"half bound": {
			[]any{static, aClaim("c", "static", "1Gi", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" })},
			aPod("p", using("c")), map[string]string{"*": "pod has unbound immediate PersistentVolumeClaims"}},

		"bound": {[]any{aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi")}, aPod("p", using("c")),
			everywhere("")},
		"bound to a node's": {[]any{aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", onlyOn("b"))},
			aPod("p", using("c")), map[string]string{"a": elsewhere, "b": ""}},
		"two on two nodes": {
			[]any{aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", onlyOn("b")),
				aClaim("d", "", "1Gi", has("w")), aVolume("w", "", "1Gi", onlyOn("a"))}, aPod("p", using("c", "d")),
			everywhere(elsewhere)},
		"bound to a zone's": {[]any{aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", zoned("2"))},
			aPod("p", using("c")), map[string]string{"a": zone, "b": ""}},
		"bound to two zones'": {[]any{aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", zoned("1__2"))},
			aPod("p", using("c")), everywhere("")},

		"one is free": {[]any{static, aClaim("c", "static", "1Gi"), aVolume("v", "static", "1Gi")},
			aPod("p", using("c")), everywhere("")},
		"one on a node": {
			[]any{static, aClaim("c", "static", "1Gi"), aVolume("v", "static", "1Gi", onlyOn("a"))},
			aPod("p", using("c")), map[string]string{"a": "", "b": noVolume}},
		"too small": {[]any{static, aClaim("c", "static", "2Gi"), aVolume("v", "static", "1Gi")},
			aPod("p", using("c")), everywhere(noVolume)},
		"of another class": {[]any{static, aClaim("c", "static", "1Gi"), aVolume("v", "", "1Gi")},
			aPod("p", using("c")), everywhere(noVolume)},
		"taken": {
			[]any{static, aClaim("c", "static", "1Gi"),
				aVolume("v", "static", "1Gi",
					func(
						v *v1.PersistentVolume,
					) {
						v.Spec.ClaimRef = &v1.ObjectReference{Name: "d", Namespace: "default"}
					})}, aPod("p", using("c")), everywhere(noVolume)},
		"one for two": {
			[]any{static, aClaim("c", "static", "1Gi"), aClaim("d", "static", "1Gi"),
				aVolume("v", "static", "1Gi", onlyOn("a")), aVolume("w", "static", "1Gi", onlyOn("b")),
				aVolume("x", "static", "1Gi", onlyOn("b"))}, aPod("p", using("c", "d")),
			map[string]string{"a": noVolume, "b": ""}},
		"small before large": {
			[]any{static, aClaim("c", "static", "5Gi"), aClaim("d", "static", "1Gi"), aVolume("v", "static", "9Gi"),
				aVolume("w", "static", "2Gi")}, aPod("p", using("c", "d")), everywhere("")},
		"it can be made": {[]any{dynamic, aClaim("c", "dynamic", "1Gi")}, aPod("p", using("c")), everywhere("")},
		"it is being made": {
			[]any{dynamic, aClaim("c", "dynamic", "1Gi", selected("b")), aVolume("v", "dynamic", "1Gi")},
			aPod("p", using("c")), map[string]string{"a": noVolume, "b": ""}},
		"in some zones": {[]any{topology, aClaim("c", "dynamic", "1Gi")}, aPod("p", using("c")),
			map[string]string{"a": noVolume, "b": ""}},
		"where there is space": {
			[]any{dynamic, telling("example.com/csi"), capacity("dynamic", "a", "1Gi"), capacity("dynamic", "b", "9Gi"),
				aClaim("c", "dynamic", "5Gi")}, aPod("p", using("c")), map[string]string{"a": noSpace, "b": ""}},
		"by more than labels": {
			[]any{dynamic, telling("example.com/csi"), aClaim("c", "dynamic", "5Gi"), &storagev1.CSIStorageCapacity{
				ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "y"}, StorageClassName: "dynamic",
				Capacity: ptr.To(resource.MustParse("9Gi")),
				NodeTopology: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{
						{Key: v1.LabelTopologyZone, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"2"}}}},
			}}, aPod("p", using("c")), map[string]string{"a": "", "b": noSpace}},
		"by two labels": {
			[]any{dynamic, telling("example.com/csi"), aClaim("c", "dynamic", "5Gi"), &storagev1.CSIStorageCapacity{
				ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "y"}, StorageClassName: "dynamic",
				Capacity: ptr.To(resource.MustParse("9Gi")),
				NodeTopology: &metav1.LabelSelector{
					MatchLabels: map[string]string{v1.LabelTopologyZone: "2", v1.LabelHostname: "b"}},
			}}, aPod("p", using("c")), map[string]string{"a": noSpace, "b": ""}},
		"of any node, by size": {
			[]any{dynamic, telling("example.com/csi"), capacity("dynamic", "a", "1Gi"), aClaim("c", "dynamic", "5Gi"),
				&storagev1.CSIStorageCapacity{
					ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "y"}, StorageClassName: "dynamic",
					Capacity: ptr.To(resource.MustParse("9Gi")), NodeTopology: &metav1.LabelSelector{},
				}}, aPod("p", using("c")), everywhere("")},
		"of no node": {
			[]any{dynamic, telling("example.com/csi"), aClaim("c", "dynamic", "5Gi"), &storagev1.CSIStorageCapacity{
				ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "y"}, StorageClassName: "dynamic",
				Capacity: ptr.To(resource.MustParse("9Gi")),
			}}, aPod("p", using("c")), everywhere(noSpace)},
		"driver does not tell": {[]any{dynamic, capacity("dynamic", "a", "1Gi"), aClaim("c", "dynamic", "5Gi")},
			aPod("p", using("c")), everywhere("")},

		"alone": {[]any{aClaim("c", "", "1Gi", has("v"), oncePodMode), aVolume("v", "", "1Gi")},
			aPod("p", using("c")), everywhere("")},
		"not alone": {
			[]any{aClaim("c", "", "1Gi", has("v"), oncePodMode), aVolume("v", "", "1Gi"),
				aPod("x", on("a"), using("c"))}, aPod("p", using("c")), everywhere(inUse)},
		"disk in use": {[]any{aPod("x", on("a"), iscsi(true))}, aPod("p", iscsi(false)),
			map[string]string{"a": noDisk, "b": ""}},
		"disk that is only read": {[]any{aPod("x", on("a"), iscsi(true))}, aPod("p", iscsi(true)), everywhere("")},

		"room for one more": {
			[]any{takes("a", "d", 2), aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", csi("d", "1")),
				aClaim("e", "", "1Gi", has("w")), aVolume("w", "", "1Gi", csi("d", "2")),
				aPod("x", on("a"), using("e"))}, aPod("p", using("c")), everywhere("")},
		"no room": {
			[]any{takes("a", "d", 1), aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", csi("d", "1")),
				aClaim("e", "", "1Gi", has("w")), aVolume("w", "", "1Gi", csi("d", "2")),
				aPod("x", on("a"), using("e"))}, aPod("p", using("c")), map[string]string{"a": tooMany, "b": ""}},
		"the same volume": {
			[]any{takes("a", "d", 1), aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", csi("d", "1")),
				aPod("x", on("a"), using("c"))}, aPod("p", using("c")), everywhere("")},
		"still attached": {
			[]any{takes("a", "d", 1), aClaim("c", "", "1Gi", has("v")), aVolume("v", "", "1Gi", csi("d", "1")),
				aVolume("w", "", "1Gi", csi("d", "2")),
				&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "x"},
					Spec: storagev1.VolumeAttachmentSpec{NodeName: "a", Attacher: "d",
						Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("w")}}},
			}, aPod("p", using("c")), map[string]string{"a": tooMany, "b": ""}},
		"no driver, and it wants one": {
			[]any{wanting("d"), takes("a", "d", 5), takes("b", "e", 5), aClaim("c", "", "1Gi", has("v")),
				aVolume("v", "", "1Gi", csi("d", "1"))}, aPod("p", using("c")),
			map[string]string{"a": "", "b": "d CSI driver is not installed on the node"}},
		"no driver at all": {[]any{wanting("example.com/csi"), dynamic, aClaim("c", "dynamic", "1Gi")},
			aPod("p", using("c")), everywhere("example.com/csi CSI driver is not installed on the node")},
		"one to be made": {[]any{takes("a", "example.com/csi", 0), dynamic, aClaim("c", "dynamic", "1Gi")},
			aPod("p", using("c")), map[string]string{"a": tooMany, "b": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			got := verdict(t, newWorld(t, append(append([]any{}, nodes...), c.world...), volumePlugins...), c.pod)
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	t.Run("no volume", func(t *testing.T) { // VolumeZone would speak first
		got := verdict(t,
			newWorld(t, append(append([]any{}, nodes...), aClaim("c", "", "1Gi", has("v"))), names.VolumeBinding),
			aPod("p", using("c")))
		if got["a"] != missing {
			t.Errorf("got %v", got)
		}
	})
}

// TestVolumeScores: a volume close to the requested size scores low by default. Storage with much
// free capacity scores high.
func TestVolumeScores(t *testing.T) {
	nodes := []any{aNode("a"), aNode("b")}
	static, dynamic := late("static", "kubernetes.io/no-provisioner"), late("dynamic", "example.com/csi")
	for name, c := range map[string]struct {
		world []any
		a, b  int64
	}{
		"volumes": {
			[]any{static, aClaim("c", "static", "1Gi"), aVolume("v", "static", "2Gi", onlyOn("a")),
				aVolume("w", "static", "10Gi", onlyOn("b"))}, 50, 90},
		"storage": {
			[]any{dynamic, telling("example.com/csi"), capacity("dynamic", "a", "4Gi"),
				capacity("dynamic", "b", "100Gi"), aClaim("c", "dynamic", "1Gi")}, 75, 99},
		"unknown": {[]any{dynamic, aClaim("c", "dynamic", "1Gi")}, 0, 0},
		"packed": {
			[]any{static, aClaim("c", "static", "1Gi"), aVolume("v", "static", "2Gi", onlyOn("a")),
				aVolume("w", "static", "10Gi", onlyOn("b")),
				argsFor(names.VolumeBinding,
					&configv1.VolumeBindingArgs{
						Shape: []configv1.UtilizationShapePoint{{Utilization: 0, Score: 0},
							{Utilization: 100, Score: 10}}})}, 50, 10},
	} {
		t.Run(name, func(t *testing.T) {
			got := newWorld(t, append(append([]any{}, nodes...), c.world...), names.VolumeBinding).Score(
				aPod("p", using("c")))
			if got["a"] != c.a || got["b"] != c.b {
				t.Errorf("got %v, want %d, %d", got, c.a, c.b)
			}
		})
	}
}

// TestReservedVolumes: a reserved volume is free for no other pod until it is released.
func TestReservedVolumes(t *testing.T) {
	w := newWorld(t, []any{aNode("a"), late("static", "kubernetes.io/no-provisioner"), aVolume("v", "static", "1Gi"),
		aClaim("c", "static", "1Gi"), aClaim("d", "static", "1Gi")}, names.VolumeBinding)
	first, second := aPod("p", using("c")), aPod("q", using("d"))
	_, state, _ := w.Filter(first)
	if s := w.Profile.Reserve(t.Context(), state, first, "a"); !s.IsSuccess() {
		t.Fatal(s)
	}
	if got := verdict(t, w, second)["a"]; got == "" {
		t.Error("a volume is given to two pods")
	}
	if got := verdict(t, w, first)["a"]; got != "" {
		t.Errorf("the pod does not get its own volume: %s", got)
	}
	w.Profile.Unreserve(t.Context(), state, first, "a")
	if got := verdict(t, w, second)["a"]; got != "" {
		t.Errorf("a volume that was given back is not there: %s", got)
	}
}

// TestReservedNode: a claim for which a volume is made on one node is not made on another.
func TestReservedNode(t *testing.T) {
	w := newWorld(t, []any{aNode("a"), aNode("b"), late("dynamic", "example.com/csi"), aClaim("c", "dynamic", "1Gi")},
		names.VolumeBinding)
	first, second := aPod("p", using("c")), aPod("q", using("c"))
	_, state, _ := w.Filter(first)
	if s := w.Profile.Reserve(t.Context(), state, first, "b"); !s.IsSuccess() {
		t.Fatal(s)
	}
	if got := verdict(t, w, second); got["a"] == "" || got["b"] != "" {
		t.Errorf("got %v", got)
	}
}

// TestVolumeHints: only an event that may help wakes a pod.
func TestVolumeHints(t *testing.T) {
	w := newWorld(t, []any{aNode("a")}, volumePlugins...)
	pod := aPod("p", using("c"))
	small, large := capacity("x", "a", "1Gi"), capacity("x", "a", "2Gi")
	labelless := aVolume("v", "", "1Gi")
	for name, c := range map[string]struct {
		plugin   string
		resource fwk.EventResource
		old, now any
		want     bool
	}{
		"its claim":               {names.VolumeBinding, fwk.PersistentVolumeClaim, nil, aClaim("c", "", "1Gi"), true},
		"another claim":           {names.VolumeBinding, fwk.PersistentVolumeClaim, nil, aClaim("d", "", "1Gi"), false},
		"more space":              {names.VolumeBinding, fwk.CSIStorageCapacity, small, large, true},
		"less space":              {names.VolumeBinding, fwk.CSIStorageCapacity, large, small, false},
		"new class":               {names.VolumeBinding, fwk.StorageClass, nil, late("x", "y"), true},
		"class with other labels": {names.VolumeBinding, fwk.StorageClass, late("x", "y"), late("x", "y"), false},
		"zone": {names.VolumeZone, fwk.PersistentVolume, labelless,
			aVolume("v", "", "1Gi", zoned("1")), true},
		"same zone":     {names.VolumeZone, fwk.PersistentVolume, labelless, labelless, false},
		"more volumes":  {names.NodeVolumeLimits, fwk.CSINode, takes("a", "d", 1), takes("a", "d", 2), true},
		"fewer volumes": {names.NodeVolumeLimits, fwk.CSINode, takes("a", "d", 2), takes("a", "d", 1), false},
		"a driver more": {names.NodeVolumeLimits, fwk.CSINode, &storagev1.CSINode{}, takes("a", "d", 1),
			true},
		"a driver less strict": {names.NodeVolumeLimits, fwk.CSIDriver, wanting("d"), telling("d"), true},
		"a strict driver less": {names.NodeVolumeLimits, fwk.CSIDriver, wanting("d"), nil, true},
		"a driver more strict": {names.NodeVolumeLimits, fwk.CSIDriver, telling("d"), wanting("d"), false},
		"user of the claim":    {names.VolumeRestrictions, fwk.AssignedPod, aPod("x", using("c")), nil, true},
		"user of another":      {names.VolumeRestrictions, fwk.AssignedPod, aPod("x", using("d")), nil, false},
	} {
		found, helps := false, false
		for _, e := range w.Profile.Events()[c.plugin] {
			if e.Event.Resource != c.resource {
				continue
			}
			found = true
			hint := fwk.Queue
			if e.QueueingHintFn != nil {
				hint, _ = e.QueueingHintFn(logr.Discard(), pod, c.old, c.now)
			}
			helps = helps || hint == fwk.Queue
		}
		if !found || helps != c.want {
			t.Errorf("%s: registered %t, helps %t", name, found, helps)
		}
	}
}

// BenchmarkStorageOfEachNode schedules a pod with a volume to be made, over 1,000 nodes that
// publish their capacity.
func BenchmarkStorageOfEachNode(b *testing.B) {
	objects := []any{late("dynamic", "example.com/csi"), telling("example.com/csi"), aClaim("c", "dynamic", "1Gi")}
	for i := range 1000 {
		name := fmt.Sprintf("n%d", i)
		objects = append(objects, aNode(name), capacity("dynamic", name, "9Gi"))
	}
	w := newWorld(b, objects, volumePlugins...)
	pod := aPod("p", using("c"))
	for b.Loop() {
		verdict(b, w, pod)
	}
}
