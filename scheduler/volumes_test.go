package scheduler_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/scheduler"
)

func claim(name, class string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
}

func volume(name, class, on string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
				{MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{on}}}},
			}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
}

func lateClass(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
}

func withClaim(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	}
}

// storageSide plays the binder and a provisioner. It acts within the scheduler's writes.
type storageSide struct {
	s       *apiServer
	version atomic.Int64
	// provision makes a volume for a claim on a node; false fails.
	provision func(claim *v1.PersistentVolumeClaim, node string) bool
}

func (x *storageSide) serve() {
	x.version.Store(1)
	x.s.client.PrependReactor("update", "persistentvolumes",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			v := a.(clienttesting.UpdateActionImpl).Object.(*v1.PersistentVolume).DeepCopy()
			x.put("persistentvolumes", "", v)
			if ref := v.Spec.ClaimRef; ref != nil {
				x.bind(ref.Name, v.Name)
			}
			return true, v, nil
		})
	x.s.client.PrependReactor("update", "persistentvolumeclaims",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			c := a.(clienttesting.UpdateActionImpl).Object.(*v1.PersistentVolumeClaim).DeepCopy()
			x.put("persistentvolumeclaims", c.Namespace, c)
			if node := c.Annotations[storage.AnnSelectedNode]; node != "" && x.provision != nil {
				if x.provision(c.DeepCopy(), node) {
					v := volume("for-"+c.Name, *c.Spec.StorageClassName, node)
					v.ResourceVersion = fmt.Sprint(x.version.Add(1))
					if err := x.s.client.Tracker().Add(v); err != nil {
						x.s.tb.Error(err)
					}
					x.bind(c.Name, v.Name)
				} else {
					next := c.DeepCopy()
					delete(next.Annotations, storage.AnnSelectedNode)
					x.put("persistentvolumeclaims", c.Namespace, next)
				}
			}
			return true, c, nil
		})
}

func (x *storageSide) put(resource, namespace string, obj interface {
	runtime.Object
	metav1.Object
}) {
	obj.SetResourceVersion(fmt.Sprint(x.version.Add(1)))
	if err := x.s.client.Tracker().Update(v1.SchemeGroupVersion.WithResource(resource), obj.DeepCopyObject(),
		namespace); err != nil {
		x.s.tb.Error(err)
	}
}

// bind finishes a binding, as the binder does.
func (x *storageSide) bind(name, volume string) {
	obj, err := x.s.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "default", name)
	if err != nil {
		x.s.tb.Error(err)
		return
	}
	c := obj.DeepCopyObject().(*v1.PersistentVolumeClaim)
	c.Spec.VolumeName = volume
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, storage.AnnBindCompleted, "yes")
	c.Status.Phase = v1.ClaimBound
	x.put("persistentvolumeclaims", "default", c)
}

// TestVolumeOfANode: a pod goes where its volume is. The volume is the claim's before the pod is
// bound.
func TestVolumeOfANode(t *testing.T) {
	s := newAPIServer(t, node("a", "64", "64Gi"), node("b", "1", "1Gi"),
		lateClass("static", "kubernetes.io/no-provisioner"), claim("c", "static"), volume("v", "static", "b"))
	(&storageSide{s: s}).serve()
	s.seed(pod("p", "100m", "1Mi", withClaim("c")))
	s.onBind = func(_ *v1.Binding, apply func() error) error {
		// The client is locked while it reacts.
		obj, err := s.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "v")
		if v, ok := obj.(*v1.PersistentVolume); err != nil || !ok || v.Spec.ClaimRef == nil ||
			v.Spec.ClaimRef.UID != "uid-c" {
			t.Errorf("the volume at the time of the binding: %+v, %v", obj, err)
		}
		return apply()
	}
	s.lead(s.start(scheduler.Config{Seed: 1}))
	s.eventually("the pod is on b",
		func(pods map[string]*v1.Pod) bool { return pods["default/p"].Spec.NodeName == "b" })
}

// TestProvisioningFails: when no volume can be made on a node, the pod is scheduled again.
func TestProvisioningFails(t *testing.T) {
	s := newAPIServer(t, node("a", "64", "64Gi"), node("b", "64", "64Gi"), lateClass("dynamic", "example.com/csi"),
		claim("c", "dynamic"))
	var tries atomic.Int64
	(&storageSide{s: s, provision: func(*v1.PersistentVolumeClaim, string) bool { return tries.Add(1) > 2 }}).serve()
	s.seed(pod("p", "100m", "1Mi", withClaim("c")))
	s.lead(s.start(scheduler.Config{Seed: 1}))
	s.eventually("the pod is bound", s.bound("p"))
	if n := tries.Load(); n != 3 {
		t.Errorf("the provisioner was asked %d times", n)
	}
	s.eventuallyEvent("p", "FailedScheduling", "binding to ")
}

// TestWaitingForVolumes: pods whose volumes take long keep no other pod from its node, and end
// their wait when they go.
func TestWaitingForVolumes(t *testing.T) {
	s := newAPIServer(t, node("a", "64", "64Gi"), lateClass("dynamic", "example.com/csi"), claim("c", "dynamic"),
		claim("d", "dynamic"))
	(&storageSide{s: s}).serve()
	s.seed(pod("p", "60", "1Mi", withClaim("c"), priority(9)), pod("q", "1", "1Mi", withClaim("d"), priority(8)))
	s.lead(s.start(scheduler.Config{Seed: 1, Writes: 1}))
	await.True(t, "a node is selected for both claims", func() bool {
		for _, name := range []string{"c", "d"} {
			c, err := s.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || c.Annotations[storage.AnnSelectedNode] != "a" {
				return false
			}
		}
		return true
	})
	s.put(pod("plain", "1", "1Mi"))
	s.eventually("a pod without volumes is bound", s.bound("plain"))
	s.put(pod("large", "50", "1Mi"))
	s.eventuallyEvent("large", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu")
	s.remove("default", "p")
	s.eventually("the room of a pod that has gone is free", s.bound("large"))
}

// TestPreemptsAPodThatWaitsForItsVolume: the eviction does not wait for the volume of the victim.
func TestPreemptsAPodThatWaitsForItsVolume(t *testing.T) {
	s := newAPIServer(t, node("a", "64", "64Gi"), lateClass("dynamic", "example.com/csi"), claim("c", "dynamic"))
	(&storageSide{s: s}).serve() // no volume is ever made
	s.seed(pod("p", "60", "1Mi", withClaim("c"), priority(1)))
	s.lead(s.start(scheduler.Config{Seed: 1}))
	await.True(t, "a node is selected for the claim", func() bool {
		c, err := s.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "c", metav1.GetOptions{})
		return err == nil && c.Annotations[storage.AnnSelectedNode] == "a"
	})
	s.put(pod("vip", "60", "1Mi", priority(100)))
	s.eventually("vip is bound", s.bound("vip"))
	if s.get("default", "p") != nil {
		t.Error("the victim is still there")
	}
}

// TestClaimComesLate: a pod that waits for its claim is tried when that comes, and not before.
func TestClaimComesLate(t *testing.T) {
	s := newAPIServer(t, node("a", "64", "64Gi"), lateClass("dynamic", "example.com/csi"))
	x := &storageSide{s: s, provision: func(*v1.PersistentVolumeClaim, string) bool { return true }}
	x.serve()
	s.seed(pod("p", "100m", "1Mi", withClaim("c")))
	s.lead(s.start(scheduler.Config{Seed: 1}))
	s.eventuallyEvent("p", "FailedScheduling", `0/1 nodes are available: persistentvolumeclaim "c" not found.`)
	if err := s.client.Tracker().Add(claim("c", "dynamic")); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pod is bound", s.bound("p"))
}
