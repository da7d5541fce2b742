package persistentvolume

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

type claimChange func(*corev1.PersistentVolumeClaim)

func aClaim(name, size string, changes ...claimChange) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func inClass(name string) claimChange {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func wants(volume string) claimChange {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

func annotated(keys ...string) claimChange {
	return func(c *corev1.PersistentVolumeClaim) {
		for _, k := range keys {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, k, "yes")
		}
	}
}

func boundTo(volume string) claimChange {
	return func(c *corev1.PersistentVolumeClaim) {
		wants(volume)(c)
		annotated(storage.AnnBindCompleted, storage.AnnBoundByController)(c)
		c.Status.Phase = corev1.ClaimBound
		c.Status.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	}
}

type volumeChange func(*corev1.PersistentVolume)

func aVolume(name, size string, changes ...volumeChange) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, change := range changes {
		change(v)
	}
	return v
}

func modes(m ...corev1.PersistentVolumeAccessMode) volumeChange {
	return func(v *corev1.PersistentVolume) { v.Spec.AccessModes = m }
}

func ofStorageClass(name string) volumeChange {
	return func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = name }
}

// claimedBy names a claim, whose UID may be left out.
func claimedBy(name string, uid types.UID) volumeChange {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "ns",
			Name: name, UID: uid}
	}
}

func byController(v *corev1.PersistentVolume) {
	metav1.SetMetaDataAnnotation(&v.ObjectMeta, storage.AnnBoundByController, "yes")
}

func provisionedBy(name string) volumeChange {
	return func(v *corev1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&v.ObjectMeta, storage.AnnDynamicallyProvisioned, name)
	}
}

func reclaim(policy corev1.PersistentVolumeReclaimPolicy) volumeChange {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = policy }
}

func volumeIn(phase corev1.PersistentVolumePhase) volumeChange {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = phase }
}

func block(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }

func going(v *corev1.PersistentVolume) { v.DeletionTimestamp = ptr.To(metav1.Now()) }

func aClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: &mode}
}

// said returns the reasons of a plan's events.
func said(p plan) string {
	var out []string
	for _, e := range slices.Concat(p.volumeEvents, p.claimEvents) {
		out = append(out, e.kind+" "+e.reason+": "+e.message)
	}
	return strings.Join(out, "\n")
}

func TestDecideClaim(t *testing.T) {
	const rwo, rox, rwx = corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany
	immediate := aClass("fast", "example.com/csi", storagev1.VolumeBindingImmediate)
	waiting := aClass("late", "example.com/csi", storagev1.VolumeBindingWaitForFirstConsumer)
	static := aClass("static", "kubernetes.io/no-provisioner", storagev1.VolumeBindingImmediate)
	external := "Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'example.com/csi' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
	none := "Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"
	labeled := func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"disk": "ssd"} }
	selects := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
	}
	type volumes = []*corev1.PersistentVolume
	for name, c := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		view  claimView
		bound string // the volume it gets
		event string
	}{
		"nothing there": {aClaim("c", "1Gi"), claimView{}, "", none},
		"one that fits": {aClaim("c", "1Gi"), claimView{candidates: volumes{aVolume("v", "1Gi")}}, "v",
			""},
		"the smallest that fits": {aClaim("c", "2Gi"),
			claimView{candidates: volumes{aVolume("huge", "9Gi"), aVolume("small", "1Gi"), aVolume("fit", "3Gi")}},
			"fit", ""},
		"fewest modes before size": {aClaim("c", "1Gi"),
			claimView{candidates: volumes{aVolume("shared", "1Gi", modes(rwo, rox, rwx)), aVolume("own", "5Gi")}},
			"own", ""},
		"more modes if it must be": {aClaim("c", "1Gi"),
			claimView{candidates: volumes{aVolume("shared", "1Gi", modes(rwo, rwx))}}, "shared", ""},
		"a mode is missing": {aClaim("c", "1Gi"),
			claimView{candidates: volumes{aVolume("v", "1Gi", modes(rox))}}, "", none},
		"a block device is none": {aClaim("c", "1Gi"), claimView{candidates: volumes{aVolume("v", "1Gi", block)}},
			"", none},
		"it is going": {aClaim("c", "1Gi"), claimView{candidates: volumes{aVolume("v", "1Gi", going)}},
			"", none},
		"it is not available yet": {aClaim("c", "1Gi"),
			claimView{candidates: volumes{aVolume("v", "1Gi", volumeIn(corev1.VolumePending))}}, "", none},
		"by selector": {aClaim("c", "1Gi", selects),
			claimView{candidates: volumes{aVolume("hdd", "1Gi"), aVolume("ssd", "5Gi", labeled)}}, "ssd", ""},
		"kept for it": {aClaim("c", "1Gi"),
			claimView{
				candidates: volumes{aVolume("a", "1Gi"), aVolume("kept", "9Gi", modes(rwo, rwx), claimedBy("c", ""))}},
			"kept", ""},
		"kept for it, too small": {aClaim("c", "2Gi"),
			claimView{candidates: volumes{aVolume("kept", "1Gi", claimedBy("c", ""))}}, "", none},
		"of an earlier one": {aClaim("c", "1Gi"),
			claimView{candidates: volumes{aVolume("v", "1Gi", claimedBy("c", "another"))}}, "", none},
		"another class of attributes": {aClaim("c", "1Gi"),
			claimView{
				candidates: volumes{
					aVolume("v", "1Gi",
						func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = ptr.To("gold") })}}, "",
			none},

		"it is made": {aClaim("c", "1Gi", inClass("fast")), claimView{class: immediate}, "",
			external},
		"one of the class": {aClaim("c", "1Gi", inClass("fast")),
			claimView{class: immediate, candidates: volumes{aVolume("v", "1Gi", ofStorageClass("fast"))}}, "v", ""},
		"no such class": {aClaim("c", "1Gi", inClass("fast")), claimView{}, "",
			`Warning ProvisioningFailed: storageclass.storage.k8s.io "fast" not found`},
		"nobody makes them": {aClaim("c", "1Gi", inClass("static")), claimView{class: static}, "",
			"Warning ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"},
		"no consumer": {aClaim("c", "1Gi", inClass("late")), claimView{class: waiting}, "",
			"Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"},
		"a consumer": {aClaim("c", "1Gi", inClass("late")),
			claimView{class: waiting, waiting: []string{"p"}}, "",
			"Normal WaitForPodScheduled: waiting for pod p to be scheduled"},
		"consumers": {aClaim("c", "1Gi", inClass("late")),
			claimView{class: waiting, waiting: []string{"p", "q"}}, "",
			"Normal WaitForPodScheduled: waiting for pods p,q to be scheduled"},
		"late, one is free": {aClaim("c", "1Gi", inClass("late")),
			claimView{class: waiting, candidates: volumes{aVolume("v", "1Gi", ofStorageClass("late"))}}, "",
			"Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"},
		"late, the scheduler's choice": {aClaim("c", "1Gi", inClass("late")),
			claimView{class: waiting,
				candidates: volumes{
					aVolume("v", "1Gi", ofStorageClass("late"), claimedBy("c", "uid-c"), byController)}}, "v", ""},
		"late, its node is known": {aClaim("c", "1Gi", inClass("late"), annotated(storage.AnnSelectedNode)),
			claimView{class: waiting}, "", external},

		"named, not there": {aClaim("c", "1Gi", wants("v")), claimView{}, "", ""},
		"named":            {aClaim("c", "1Gi", wants("v")), claimView{named: aVolume("v", "1Gi")}, "v", ""},
		"named, kept for it": {aClaim("c", "1Gi", wants("v")),
			claimView{named: aVolume("v", "1Gi", claimedBy("c", ""))}, "v", ""},
		"named, too small": {aClaim("c", "2Gi", wants("v")), claimView{named: aVolume("v", "1Gi")}, "",
			`Warning VolumeMismatch: Cannot bind to requested volume "v": requested PV is too small`},
		"named, other class": {aClaim("c", "1Gi", wants("v")),
			claimView{named: aVolume("v", "1Gi", ofStorageClass("fast"))}, "",
			`Warning VolumeMismatch: Cannot bind to requested volume "v": storageClassName does not match`},
		"named, other mode": {aClaim("c", "1Gi", wants("v")), claimView{named: aVolume("v", "1Gi", block)}, "",
			`Warning VolumeMismatch: Cannot bind to requested volume "v": incompatible volumeMode`},
		"named, other access": {aClaim("c", "1Gi", wants("v")), claimView{named: aVolume("v", "1Gi", modes(rox))}, "",
			`Warning VolumeMismatch: Cannot bind to requested volume "v": incompatible accessMode`},
		"named, going": {aClaim("c", "1Gi", wants("v")), claimView{named: aVolume("v", "1Gi", going)}, "",
			`Warning VolumeMismatch: Cannot bind to requested volume "v": the volume is marked for deletion "v"`},
		"named, another has it": {aClaim("c", "1Gi", wants("v")),
			claimView{named: aVolume("v", "1Gi", claimedBy("d", "uid-d"))}, "",
			`Warning FailedBinding: volume "v" already bound to a different claim.`},

		"bound, and the volume forgot": {aClaim("c", "1Gi", boundTo("v")), claimView{named: aVolume("v", "1Gi")}, "v",
			""},
	} {
		t.Run(name, func(t *testing.T) {
			p := decideClaim(c.claim, c.view)
			got := ""
			if p.volume != nil {
				got = p.volume.Name
				checkBinding(t, p.volume, cmpOr(p.claim, c.claim))
			}
			if got != c.bound || said(p) != c.event {
				t.Errorf("it gets volume %q, told %q; want %q, %q", got, said(p), c.bound, c.event)
			}
			if c.bound == "" && !p.waits {
				t.Error("it is not looked at again")
			}
		})
	}
}

func cmpOr[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// checkBinding looks whether a volume and a claim are bound to each other.
func checkBinding(t *testing.T, v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
	t.Helper()
	if v.Status.Phase != corev1.VolumeBound || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID ||
		v.Spec.ClaimRef.Kind != "PersistentVolumeClaim" {
		t.Errorf("volume %s: %s, claimRef %v", v.Name, v.Status.Phase, v.Spec.ClaimRef)
	}
	if c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName != v.Name || !isBound(c) {
		t.Errorf("claim %s: %s, volume %q, %v", c.Name, c.Status.Phase, c.Spec.VolumeName, c.Annotations)
	}
	if size := c.Status.Capacity[corev1.ResourceStorage]; size.IsZero() ||
		!slices.Equal(c.Status.AccessModes, v.Spec.AccessModes) {
		t.Errorf("claim %s has capacity %v and modes %v", c.Name, c.Status.Capacity, c.Status.AccessModes)
	}
}

// TestWhoBound: the annotations show the side that the user had bound.
func TestWhoBound(t *testing.T) {
	for name, c := range map[string]struct {
		claim             *corev1.PersistentVolumeClaim
		volume            *corev1.PersistentVolume
		onClaim, onVolume bool
	}{
		"neither":    {aClaim("c", "1Gi"), aVolume("v", "1Gi"), true, true},
		"the claim":  {aClaim("c", "1Gi", wants("v")), aVolume("v", "1Gi"), false, true},
		"the volume": {aClaim("c", "1Gi"), aVolume("v", "1Gi", claimedBy("c", "")), true, false},
		"both":       {aClaim("c", "1Gi", wants("v")), aVolume("v", "1Gi", claimedBy("c", "")), false, false},
	} {
		p := bind(c.volume, c.claim)
		if got := metav1.HasAnnotation(p.claim.ObjectMeta, storage.AnnBoundByController); got != c.onClaim {
			t.Errorf("%s: bound by controller is %t on the claim", name, got)
		}
		if got := metav1.HasAnnotation(p.volume.ObjectMeta, storage.AnnBoundByController); got != c.onVolume {
			t.Errorf("%s: bound by controller is %t on the volume", name, got)
		}
	}
}

func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolume
		event  string
	}{
		"no name": {aClaim("c", "1Gi", boundTo("")), nil,
			"Warning ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"},
		"no volume": {aClaim("c", "1Gi", boundTo("v")), nil,
			"Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!"},
		"another's": {aClaim("c", "1Gi", boundTo("v")), aVolume("v", "1Gi", claimedBy("d", "uid-d")),
			"Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly"},
	} {
		p := decideClaim(c.claim, claimView{named: c.volume})
		if said(p) != c.event || p.volume != nil || p.claim == nil || p.claim.Status.Phase != corev1.ClaimLost ||
			p.claim.Status.Capacity != nil {
			t.Errorf("%s: told %q, want %q; the claim: %+v", name, said(p), c.event, p.claim)
			continue
		}
		if again := decideClaim(p.claim, claimView{named: c.volume}); again.claim != nil || said(again) != "" {
			t.Errorf("%s: it is lost a second time", name)
		}
	}
}

// TestCapacity: a claim has the size of its volume when it is bound. Later that is the resizer's.
func TestCapacity(t *testing.T) {
	p := bind(aVolume("v", "5Gi"), aClaim("c", "1Gi"))
	if got := p.claim.Status.Capacity[corev1.ResourceStorage]; got.String() != "5Gi" {
		t.Errorf("capacity %s", got.String())
	}
	grown := aVolume("v", "9Gi", claimedBy("c", "uid-c"), volumeIn(corev1.VolumeBound))
	if p := decideClaim(aClaim("c", "1Gi", boundTo("v")), claimView{named: grown}); p.claim != nil {
		t.Errorf("the capacity of a bound claim is changed to %v", p.claim.Status.Capacity)
	}
	grown.Annotations = map[string]string{preResizeCapacity: "4Gi"}
	p = bind(grown, aClaim("c", "1Gi"))
	if got := p.claim.Status.Capacity[corev1.ResourceStorage]; got.String() != "4Gi" {
		t.Errorf("capacity of one that has not grown yet: %s", got.String())
	}
}

// TestDefaultClass: a claim without a class gets the default one, unless a volume without a class
// fits. One that wants none ("") does not.
func TestDefaultClass(t *testing.T) {
	old, young := aClass("old", "x", storagev1.VolumeBindingImmediate),
		aClass("young", "x", storagev1.VolumeBindingImmediate)
	old.Annotations = map[string]string{betaDefaultClass: "true"}
	young.Annotations = map[string]string{defaultClass: "true"}
	old.CreationTimestamp, young.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	other := aClass("other", "x", storagev1.VolumeBindingImmediate)
	other.CreationTimestamp = metav1.NewTime(time.Unix(3, 0))
	v := claimView{standard: standard([]*storagev1.StorageClass{old, young, other})}
	classless := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }
	if p := decideClaim(aClaim("c", "1Gi", classless), v); p.claim == nil ||
		ptr.Deref(p.claim.Spec.StorageClassName, "") != "young" {
		t.Errorf("the claim is %+v", p.claim)
	}
	if p := decideClaim(aClaim("c", "1Gi"), v); p.claim != nil {
		t.Errorf("a claim of no class gets %v", p.claim.Spec.StorageClassName)
	}
	v.candidates = []*corev1.PersistentVolume{aVolume("v", "1Gi")}
	if p := decideClaim(aClaim("c", "1Gi", classless), v); p.volume == nil {
		t.Error("a volume that fits is not taken")
	}
}

// TestProvisionerAnnotations: the provisioner of the class learns of the claim by both annotations.
func TestProvisionerAnnotations(t *testing.T) {
	class := aClass("fast", "example.com/csi", storagev1.VolumeBindingImmediate)
	p := decideClaim(aClaim("c", "1Gi", inClass("fast")), claimView{class: class})
	for _, key := range []string{"volume.kubernetes.io/storage-provisioner",
		"volume.beta.kubernetes.io/storage-provisioner"} {
		if p.claim == nil || p.claim.Annotations[key] != "example.com/csi" {
			t.Fatalf("the claim is %+v", p.claim)
		}
	}
	if again := decideClaim(p.claim, claimView{class: class}); again.claim != nil {
		t.Errorf("it is written again: %+v", again.claim)
	}
}

func TestDecideVolume(t *testing.T) {
	const retain, remove, recycle = corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRecycle
	released := volumeIn(corev1.VolumeReleased)
	gone := claimedBy("c", "uid-c")
	elsewhere := aClaim("c", "1Gi", boundTo("w"))
	nfs := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Path: "/"}}
	}
	at := func(path string) volumeChange {
		return func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path = path }
	}
	for name, c := range map[string]struct {
		volume  *corev1.PersistentVolume
		claim   *corev1.PersistentVolumeClaim
		phase   corev1.PersistentVolumePhase // "" when nothing is written
		event   string
		destroy string
	}{
		"new": {aVolume("v", "1Gi", volumeIn(corev1.VolumePending)), nil, corev1.VolumeAvailable,
			"", ""},
		"new, kept for a claim": {aVolume("v", "1Gi", volumeIn(corev1.VolumePending), claimedBy("c", "")), nil,
			corev1.VolumeAvailable, "", ""},
		"available": {aVolume("v", "1Gi"), nil, "", "", ""},
		"bound": {aVolume("v", "1Gi", gone), aClaim("c", "1Gi", boundTo("v")), corev1.VolumeBound,
			"", ""},
		"half bound": {aVolume("v", "1Gi", gone), aClaim("c", "1Gi"), "", "", ""},
		"its claim is gone": {aVolume("v", "1Gi", gone, volumeIn(corev1.VolumeBound), reclaim(remove)), nil,
			corev1.VolumeReleased, "", ""},
		"another of that name": {aVolume("v", "1Gi", claimedBy("c", "earlier"), volumeIn(corev1.VolumeBound)),
			aClaim("c", "1Gi"), corev1.VolumeReleased, "", ""},
		"retained": {aVolume("v", "1Gi", gone, released, reclaim(retain)), nil, "", "", ""},
		"recycled": {aVolume("v", "1Gi", gone, released, reclaim(recycle)), nil, corev1.VolumeFailed,
			"Warning VolumeFailedRecycle: No recycler plugin found for the volume!", ""},
		"unknown policy": {aVolume("v", "1Gi", gone, released, reclaim("Burn")), nil, corev1.VolumeFailed,
			"Warning VolumeUnknownReclaimPolicy: Volume has unrecognized PersistentVolumeReclaimPolicy", ""},
		"the provisioner's": {
			aVolume("v", "1Gi", gone, released, reclaim(remove), provisionedBy("example.com/csi")), nil, "", "", ""},
		"nobody's": {aVolume("v", "1Gi", gone, released, reclaim(remove), nfs), nil,
			corev1.VolumeFailed,
			`Warning VolumeFailedDelete: error getting deleter volume plugin for volume "v": no deletable volume plugin matched`, ""},
		"of the host": {aVolume("v", "1Gi", gone, released, reclaim(remove)), nil, "", "", "/tmp/v"},
		"of the host, tried before": {aVolume("v", "1Gi", gone, volumeIn(corev1.VolumeFailed), reclaim(remove)), nil,
			"", "", "/tmp/v"},
		"of the host, going": {aVolume("v", "1Gi", gone, released, reclaim(remove), going), nil, "", "", ""},
		"elsewhere on the host": {aVolume("v", "1Gi", gone, released, reclaim(remove), at("/var/tmp/v")), nil,
			corev1.VolumeFailed,
			"Warning VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /var/tmp/v", ""},
		"out of it": {aVolume("v", "1Gi", gone, released, reclaim(remove), at("/tmp/../etc")), nil,
			corev1.VolumeFailed,
			"Warning VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /tmp/../etc",
			""},
		"all of it": {aVolume("v", "1Gi", gone, released, reclaim(remove), at("/tmp/")), nil,
			corev1.VolumeFailed,
			"Warning VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /tmp/", ""},
		"failed before": {aVolume("v", "1Gi", gone, volumeIn(corev1.VolumeFailed), reclaim(recycle)), nil,
			"", "", ""},
		"made in vain": {
			aVolume("v", "1Gi", gone, volumeIn(corev1.VolumeBound), reclaim(remove), provisionedBy("example.com/csi")),
			elsewhere, corev1.VolumeReleased, "", ""},
		"bound in vain": {aVolume("v", "1Gi", gone, volumeIn(corev1.VolumeBound), byController), elsewhere,
			corev1.VolumeAvailable, "", ""},
		"another mode": {aVolume("v", "1Gi", gone, block), aClaim("c", "1Gi"), "",
			"Warning VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode.\n" +
				"Warning VolumeMismatch: Cannot bind PersistentVolume \"v\" to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode.", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := decideVolume(c.volume, c.claim)
			var phase corev1.PersistentVolumePhase
			if p.volume != nil {
				phase = p.volume.Status.Phase
			}
			if phase != c.phase || said(p) != c.event || p.destroy != c.destroy {
				t.Errorf("phase %q, told %q, to be deleted %q; want %q, %q, %q", phase, said(p), p.destroy, c.phase,
					c.event, c.destroy)
			}
		})
	}
}

// TestUnbound: unbinding a volume removes only the controller's own fields.
func TestUnbound(t *testing.T) {
	elsewhere := aClaim("c", "1Gi", boundTo("w"))
	if p := decideVolume(aVolume("v", "1Gi", claimedBy("c", "uid-c"), byController),
		elsewhere); p.volume.Spec.ClaimRef != nil || len(p.volume.Annotations) > 0 {
		t.Errorf("claimRef %v, annotations %v", p.volume.Spec.ClaimRef, p.volume.Annotations)
	}
	p := decideVolume(aVolume("v", "1Gi", claimedBy("c", "uid-c")), elsewhere)
	if ref := p.volume.Spec.ClaimRef; ref == nil || ref.Name != "c" || ref.UID != "" {
		t.Errorf("the user's reservation has become %v", ref)
	}
}
