package localprovisioner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/internal/localpv"
)

func newClaim(changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "c1", Annotations: map[string]string{
			provisionerAnnotation: localpv.Provisioner, selectedNodeAnnotation: "n"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("local-path"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func newNode(changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelHostname: "n"},
		Annotations: map[string]string{localpv.RootAnnotation: "/data/volumes"}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")}}}
	for _, change := range changes {
		change(n)
	}
	return n
}

func TestDecideClaim(t *testing.T) {
	class := defaultClass("local-path", nil)
	immediate := defaultClass("local-path", nil)
	immediate.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	foreign := defaultClass("local-path", nil)
	foreign.Provisioner = "x"
	annotate := func(key, value string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Annotations[key] = value }
	}
	for name, c := range map[string]struct {
		claim    *corev1.PersistentVolumeClaim
		class    *storagev1.StorageClass
		node     *corev1.Node
		made     bool
		failure  string
		reselect bool
	}{
		"made":            {newClaim(), class, newNode(), true, "", false},
		"no class yet":    {newClaim(), nil, newNode(), false, "", false},
		"another's class": {newClaim(), foreign, newNode(), false, "", false},
		"no pod yet":      {newClaim(annotate(selectedNodeAnnotation, "")), class, nil, false, "", false},
		"at once": {newClaim(annotate(selectedNodeAnnotation, "")), immediate, nil, false,
			"WaitForFirstConsumer", false},
		"at once, with a node": {newClaim(), immediate, newNode(), true, "", false},
		"the node has gone":    {newClaim(), class, nil, false, `node "n" is not there`, true},
		"the node goes": {newClaim(), class,
			newNode(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }), false, "is not there", true},
		"a node without volumes": {newClaim(), class, newNode(func(n *corev1.Node) { n.Annotations = nil }), false,
			"has no local volumes", true},
		"a node of another label": {newClaim(), class,
			newNode(func(n *corev1.Node) { n.Labels[corev1.LabelHostname] = "m" }), false, "cannot be told", true},
		"for many nodes": {newClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadWriteMany)
		}), class, newNode(), false, "ReadWriteMany is not supported", false},
		"a device": {
			newClaim(
				func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }),
			class, newNode(), false, "volumeMode Block", false},
		"a selector": {newClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }),
			class, newNode(), false, "Selector", false},
		"a copy": {
			newClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = &corev1.TypedLocalObjectReference{} }),
			class, newNode(), false, "dataSource", false},
	} {
		got := decideClaim(c.claim, c.class, c.node)
		if (got.create != nil) != c.made || (got.failure == "") != (c.failure == "") ||
			!strings.Contains(got.failure, c.failure) || got.reselect != c.reselect {
			t.Errorf("%s: %+v", name, got)
		}
		if got.create != nil && !localpv.OnNode(got.create, "n") {
			t.Errorf("%s: its node does not know it: %+v", name, got.create)
		}
	}
}

func TestDecideVolume(t *testing.T) {
	bound := newClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = "pvc-c1", corev1.ClaimBound
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	})
	larger := bound.DeepCopy()
	larger.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	fresh := func(
		phase corev1.PersistentVolumePhase, changes ...func(*corev1.PersistentVolume),
	) *corev1.PersistentVolume {
		v := newVolume(newClaim(), defaultClass("local-path", nil), newNode())
		v.Status.Phase = phase
		for _, change := range changes {
			change(v)
		}
		return v
	}
	going := func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} }
	retained := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	for name, c := range map[string]struct {
		volume  *corev1.PersistentVolume
		claim   *corev1.PersistentVolumeClaim
		hasNode bool
		want    volumeAct
	}{
		"bound":         {fresh(corev1.VolumeBound), bound, true, nothing},
		"wants to grow": {fresh(corev1.VolumeBound), larger, true, grow},
		"has grown": {
			fresh(corev1.VolumeBound,
				func(v *corev1.PersistentVolume) { v.Spec.Capacity = larger.Spec.Resources.Requests }), larger, true,
			tellGrown},
		"released":                   {fresh(corev1.VolumeReleased), nil, true, deleteVolume},
		"released, to be kept":       {fresh(corev1.VolumeReleased, retained), nil, true, nothing},
		"goes, its node deletes":     {fresh(corev1.VolumeReleased, going), nil, true, nothing},
		"goes, its node has gone":    {fresh(corev1.VolumeReleased, going), nil, false, abandon},
		"goes, bound, its node gone": {fresh(corev1.VolumeBound, going), bound, false, nothing},
		"goes, guarded, its node gone": {
			fresh(corev1.VolumeReleased, going,
				func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, pvProtection) }), nil, false,
			nothing},
		"of an earlier claim": {
			fresh(corev1.VolumeBound, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "c0" }), larger, true,
			nothing},
	} {
		if got := decideVolume(c.volume, c.claim, c.hasNode); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestDecideCapacities(t *testing.T) {
	class := defaultClass("local-path", nil)
	volume := newVolume(newClaim(), class, newNode())
	bare := newNode(func(n *corev1.Node) { n.Name, n.Annotations = "bare", nil })
	got := decideCapacities([]*storagev1.StorageClass{class, {Provisioner: "x"}}, []*corev1.Node{newNode(), bare},
		[]*corev1.PersistentVolume{volume, {}})
	if len(got) != 1 {
		t.Fatalf("%v", got)
	}
	for _, c := range got {
		if c.StorageClassName != "local-path" || c.Capacity.Cmp(resource.MustParse("9Gi")) != 0 ||
			c.NodeTopology.MatchLabels[corev1.LabelHostname] != "n" {
			t.Errorf("%+v", c)
		}
	}
}

func start(t *testing.T, class string, objects ...kruntime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(t, objects...)
	ctrl, err := New(Config{Informers: c.Informers, DefaultClass: class})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	return c
}

// TestLife goes through the life of a volume: made, grown, released, gone with its node.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, "local-path", newClaim(), newNode())
		ctx := t.Context()
		volumes, claims := c.Client.CoreV1().PersistentVolumes(), c.Client.CoreV1().PersistentVolumeClaims("ns")
		get := func() *corev1.PersistentVolume {
			v, err := volumes.Get(ctx, "pvc-c1", metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return v
		}
		controllertest.Eventually(t, "the volume is made, of the class that was laid down",
			func() bool { return get().Name != "" })
		if v := get(); v.Spec.Local.Path != "/data/volumes/pvc-c1" || v.Spec.ClaimRef.UID != "c1" {
			t.Errorf("%+v", v.Spec)
		}
		controllertest.Eventually(t, "what the node has left is published", func() bool {
			list, err := c.Client.StorageV1().CSIStorageCapacities("kube-system").List(ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 1 && list.Items[0].Capacity.Cmp(resource.MustParse("9Gi")) == 0
		})
		claim, err := claims.Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Spec.VolumeName = "pvc-c1"
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		if claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		claim.Status.Phase = corev1.ClaimBound
		if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the claim has grown", func() bool {
			claim, err := claims.Get(ctx, "data", metav1.GetOptions{})
			return err == nil && claim.Status.Capacity.Storage().Cmp(resource.MustParse("2Gi")) == 0
		})
		if err := claims.Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		v := get()
		v.Status.Phase = corev1.VolumeReleased
		if _, err := volumes.UpdateStatus(ctx, v, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the volume is deleted, and waits for its node",
			func() bool { return get().DeletionTimestamp != nil })
		time.Sleep(time.Hour)
		if get().Name == "" {
			t.Fatal("the volume has gone before its data")
		}
		if err := c.Client.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the volume goes after its node", func() bool { return get().Name == "" })
	})
}

// TestReselect: a node where the volume cannot be is given up.
func TestReselect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, "local-path", newClaim(), newNode(func(n *corev1.Node) { n.Annotations = nil }))
		controllertest.Eventually(t, "the selected node is taken back", func() bool {
			claim, err := c.Client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
			_, selected := claim.Annotations[selectedNodeAnnotation]
			return err == nil && !selected
		})
	})
}

// TestLaidDownOnce: a class that was deleted stays so, and a cluster that has a default class keeps
// it.
func TestLaidDownOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := defaultClass("other", nil)
		c := controllertest.New(t, other)
		classes := c.Client.StorageV1().StorageClasses()
		term := func() {
			ctrl, err := New(Config{Informers: c.Informers, DefaultClass: "local-path"})
			if err != nil {
				t.Fatal(err)
			}
			stop := c.Start(ctrl.Run)
			time.Sleep(time.Minute)
			stop()
		}
		term()
		class, err := classes.Get(t.Context(), "local-path", metav1.GetOptions{})
		if err != nil || class.Annotations[defaultAnnotation] != "" {
			t.Errorf("beside another default class: %+v %v", class, err)
		}
		if err := classes.Delete(t.Context(), "local-path", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		term()
		if _, err := classes.Get(t.Context(), "local-path", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a class that was deleted: %v", err)
		}
	})
}
