package attachdetach

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/controllertest"
)

func aPod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{
				{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func aVolume(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "u"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
		},
	}
}

func aClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "v"},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
}

func aNode(name string, ready corev1.ConditionStatus, inUse ...corev1.UniqueVolumeName) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}, VolumesInUse: inUse}}
}

func TestDecide(t *testing.T) {
	now := time.Unix(1000, 0)
	up, busy, down := nodeView{exists: true, ready: true}, nodeView{exists: true, ready: true, inUse: true},
		nodeView{exists: true, inUse: true}
	off := nodeView{exists: true, inUse: true, outOfService: true}
	here, going := &storagev1.VolumeAttachment{},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())}}
	on := func(nodes ...string) map[string][]*corev1.Pod {
		users := map[string][]*corev1.Pod{}
		for _, n := range nodes {
			users[n] = []*corev1.Pod{aPod("on-"+n, n)}
		}
		return users
	}
	type attached = map[string]*storagev1.VolumeAttachment
	type nodes = map[string]nodeView
	long, short := map[string]time.Time{"a": now.Add(-6 * time.Minute)},
		map[string]time.Time{"a": now.Add(-time.Minute)}
	for name, c := range map[string]struct {
		v       view
		want    string // attach, detach, forced
		again   time.Duration
		refused string
	}{
		"nothing":               {view{}, "[] [] []", 0, ""},
		"a pod comes":           {view{users: on("a"), nodes: nodes{"a": up}}, "[a] [] []", 0, ""},
		"to a node that is not": {view{users: on("a")}, "[] [] []", 0, ""},
		"it is there": {view{users: on("a"), attachments: attached{"a": here}, nodes: nodes{"a": up}},
			"[] [] []", 0, ""},
		"it is going there": {view{users: on("a"), attachments: attached{"a": going}, nodes: nodes{"a": up}},
			"[] [] []", 0, ""},
		"on another node": {view{users: on("a", "b"), attachments: attached{"a": here}, nodes: nodes{"a": up, "b": up}},
			"[] [] []", 0,
			"on-b: Volume is already used by pod(s) on-a"},
		"on its way from another": {
			view{users: on("b"), attachments: attached{"a": going}, nodes: nodes{"a": up, "b": up}}, "[] [] []", 0,
			"on-b: Volume is already exclusively attached to one node and can't be attached to another"},
		"shared": {
			view{users: on("a", "b"), attachments: attached{"a": here}, nodes: nodes{"a": up, "b": up}, shared: true},
			"[b] [] []", 0, ""},
		"two at once": {view{users: on("a", "b"), nodes: nodes{"a": up, "b": up}}, "[a] [] []", 0,
			"on-b: Volume is already exclusively attached to one node and can't be attached to another"},
		"nobody needs it": {view{attachments: attached{"a": here}, nodes: nodes{"a": up}}, "[] [a] []", 0, ""},
		"it is in use": {view{attachments: attached{"a": here}, nodes: nodes{"a": busy}, unused: long}, "[] [] []",
			0, ""},
		"the node is down": {view{attachments: attached{"a": here}, nodes: nodes{"a": down}, unused: short}, "[] [] []",
			5 * time.Minute, ""},
		"for long": {view{attachments: attached{"a": here}, nodes: nodes{"a": down}, unused: long},
			"[] [a] [a]", 0, ""},
		"the node is gone": {view{attachments: attached{"a": here}, unused: short}, "[] [] []", 5 * time.Minute, ""},
		"for long, gone":   {view{attachments: attached{"a": here}, unused: long}, "[] [a] [a]", 0, ""},
		"off by taint": {view{attachments: attached{"a": here}, nodes: nodes{"a": off}, unused: short},
			"[] [a] [a]", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.v.now, c.v.forceAfter = now, DefaultForceAfter
			p := decide(c.v)
			var refused []string
			for pod, why := range p.refused {
				refused = append(refused, pod.Name+": "+why)
			}
			if got := fmt.Sprint(p.attach, p.detach, p.forced); got != c.want || p.again != c.again ||
				strings.Join(refused, "\n") != c.refused {
				t.Errorf("got %s, again in %v, refused %v; want %s, %v, %q", got, p.again, refused, c.want, c.again,
					c.refused)
			}
			c.v.forceAfter = 0
			if p := decide(c.v); len(p.forced) > 0 && !c.v.nodes["a"].outOfService || p.again != 0 {
				t.Errorf("without a time: forced from %v, again in %v", p.forced, p.again)
			}
		})
	}
}

// TestOneNode: under all changes, a volume for one node is never attached to two, and never
// detached from a ready node that uses it.
func TestOneNode(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 0))
		names := []string{"a", "b", "c"}
		v := view{users: map[string][]*corev1.Pod{}, attachments: map[string]*storagev1.VolumeAttachment{},
			nodes:  map[string]nodeView{},
			unused: map[string]time.Time{}, now: time.Unix(0, 0), forceAfter: DefaultForceAfter}
		for range 100 {
			v.now = v.now.Add(time.Minute)
			node := names[rng.IntN(3)]
			switch rng.IntN(5) {
			case 0:
				v.users[node] = []*corev1.Pod{aPod("p", node)}
			case 1:
				delete(v.users, node)
				v.unused[node] = v.now
			case 2:
				v.nodes[node] = nodeView{exists: rng.IntN(5) > 0, ready: rng.IntN(3) > 0,
					inUse: v.attachments[node] != nil && rng.IntN(2) > 0}
			case 3: // the attacher has detached
				if a := v.attachments[node]; a != nil && a.DeletionTimestamp != nil {
					delete(v.attachments, node)
				}
			case 4:
				p := decide(v)
				for _, n := range p.detach {
					if v.nodes[n].ready && v.nodes[n].inUse {
						t.Fatalf("seed %d: taken from a ready node that uses it", seed)
					}
					v.attachments[n] = &storagev1.VolumeAttachment{
						ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())}}
				}
				for _, n := range p.attach {
					v.attachments[n] = &storagev1.VolumeAttachment{}
				}
			}
			if len(v.attachments) > 1 {
				t.Fatalf("seed %d: attached to %d nodes", seed, len(v.attachments))
			}
		}
	}
}

func TestNeedsVolumes(t *testing.T) {
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }
	ended := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"runs":                   {aPod("p", "a"), true},
		"has no node":            {aPod("p", ""), false},
		"has ended":              {aPod("p", "a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		"is being deleted":       {aPod("p", "a", deleted), true},
		"is being deleted, over": {aPod("p", "a", deleted, ended), false},
		"waits to be restarted":  {aPod("p", "a", ended), true},
	} {
		if got := needsVolumes(c.pod); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func start(t *testing.T, objects ...kruntime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(t, objects...)
	ctrl, err := New(Config{Informers: c.Informers, ForceAfter: DefaultForceAfter})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	return c
}

func attachments(t *testing.T, c *controllertest.Cluster) (nodes []string) {
	t.Helper()
	list, err := c.Client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.Items {
		nodes = append(nodes, a.Spec.NodeName)
	}
	return nodes
}

// TestMove: a pod moves from one node to another; the volume follows when the first node lets go.
func TestMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const inUse = corev1.UniqueVolumeName("kubernetes.io/csi/d^h")
		c := start(t, aVolume(corev1.ReadWriteOnce), aClaim(), aNode("a", corev1.ConditionTrue),
			aNode("b", corev1.ConditionTrue), aPod("p", "a"))
		controllertest.Eventually(t, "it is attached to a",
			func() bool { return slices.Equal(attachments(t, c), []string{"a"}) })
		name := AttachmentName("h", "d", "a")
		a, err := c.Client.StorageV1().VolumeAttachments().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || a.Spec.Attacher != "d" || ptr.Deref(a.Spec.Source.PersistentVolumeName, "") != "v" {
			t.Fatalf("the attachment: %+v, %v", a, err)
		}
		a.Status.Attached = true
		if _, err := c.Client.StorageV1().VolumeAttachments().UpdateStatus(t.Context(), a,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		node := func() *corev1.Node {
			n, err := c.Client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		controllertest.Eventually(t, "the node's status names it", func() bool {
			return slices.Equal(node().Status.VolumesAttached, []corev1.AttachedVolume{{Name: inUse}})
		})
		setInUse := func(names ...corev1.UniqueVolumeName) {
			n := node()
			n.Status.VolumesInUse = names
			if _, err := c.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		setInUse(inUse)
		if err := c.Client.CoreV1().Pods("ns").Delete(t.Context(), "p",
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Client.CoreV1().Pods("ns").Create(t.Context(), aPod("q", "b"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the node is ready: it is not forced
		if got := attachments(t, c); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("attached to %v", got)
		}
		setInUse()
		controllertest.Eventually(t, "it is attached to b",
			func() bool { return slices.Equal(attachments(t, c), []string{"b"}) })
		controllertest.Eventually(t, "the status of a is empty",
			func() bool { return len(node().Status.VolumesAttached) == 0 })
	})
}

func attachment(name string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
		NodeName: "a", Attacher: "d", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("v")}}}
}

// TestMadeByOthers: an attachment under another maker's name is left to that maker.
func TestMadeByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, aVolume(corev1.ReadWriteOnce), aClaim(), aNode("a", corev1.ConditionTrue), attachment("theirs"),
			attachment("csi-theirs"))
		time.Sleep(time.Hour)
		if got := attachments(t, c); len(got) != 2 {
			t.Errorf("of two attachments %d are left", len(got))
		}
	})
}

// TestNodeDown: a node that is not ready keeps the volume for six minutes.
func TestNodeDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := aVolume(corev1.ReadWriteOnce)
		c := start(t, v, aClaim(), aNode("a", corev1.ConditionUnknown, uniqueName(v)),
			attachment(AttachmentName("h", "d", "a")))
		time.Sleep(DefaultForceAfter - time.Second)
		if got := attachments(t, c); len(got) != 1 {
			t.Fatalf("attached to %v before the time", got)
		}
		time.Sleep(2 * time.Second)
		if got := attachments(t, c); len(got) != 0 {
			t.Errorf("still attached to %v", got)
		}
	})
}

// TestNoAttachment: a driver that wants none gets none.
func TestNoAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, aVolume(corev1.ReadWriteOnce), aClaim(), aNode("a", corev1.ConditionTrue), aPod("p", "a"),
			&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"},
				Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}})
		time.Sleep(time.Minute)
		if got := attachments(t, c); len(got) != 0 {
			t.Errorf("attached to %v", got)
		}
	})
}

func attached() *storagev1.VolumeAttachment {
	a := attachment(AttachmentName("h", "d", "a"))
	a.Status.Attached = true
	return a
}

// TestDetachingIsNotTakenBack: a volume in detachment stays out of its node's status, also while
// the informer shows its attachment. After a failed deletion the status lists the volume again.
func TestDetachingIsNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, aVolume(corev1.ReadWriteOnce), aClaim(), aNode("a", corev1.ConditionTrue),
			aPod("p", "a"), attached())
		fails, asked := true, 0
		c.Client.PrependReactor("delete", "volumeattachments",
			func(clienttesting.Action) (bool, kruntime.Object, error) {
				asked++
				if fails {
					return true, nil, apierrors.NewInternalError(errors.New("no"))
				}
				return true, nil, nil // done, but the informers do not know yet
			})
		ctrl, err := New(Config{Informers: c.Informers, ForceAfter: DefaultForceAfter})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		named := func() int {
			n, err := c.Client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(n.Status.VolumesAttached)
		}
		controllertest.Eventually(t, "the status names it", func() bool { return named() == 1 })
		if err := c.Client.CoreV1().Pods("ns").Delete(t.Context(), "p",
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "a deletion", func() bool { return asked > 3 })
		controllertest.Eventually(t, "the status names it again", func() bool { return named() == 1 })
		fails = false
		time.Sleep(2 * time.Minute) // the longest back-off
		if n := named(); n != 0 {
			t.Errorf("the status names %d volumes", n)
		}
		node, err := c.Client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/e^x"} // an event of the node
		if _, err := c.Client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if n := named(); n != 0 {
			t.Errorf("the status names %d volumes after an event", n)
		}
	})
}

// TestANewLeaderDetachesNothingInUse: at the start of a term the informers may lack the pod of an
// attachment that the last leader made.
func TestANewLeaderDetachesNothingInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, aVolume(corev1.ReadWriteOnce), aClaim(), aNode("a", corev1.ConditionTrue),
			aPod("p", "a"), attached())
		c.Client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, kruntime.Object, error) {
			if a.GetNamespace() == "" { // the informer
				return true, &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: controllertest.Beginning}}, nil
			}
			return false, nil, nil
		})
		ctrl, err := New(Config{Informers: c.Informers, ForceAfter: DefaultForceAfter})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		time.Sleep(time.Minute)
		if got := attachments(t, c); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("attached to %v while a pod needs it", got)
		}
		pod, err := c.Client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase = corev1.PodSucceeded // the informer hears of it by that
		if _, err := c.Client.CoreV1().Pods("ns").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it is detached", func() bool { return len(attachments(t, c)) == 0 })
	})
}
