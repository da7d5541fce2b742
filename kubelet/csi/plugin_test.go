package csi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/cluster-test/csidriver"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/kubelet/volumes"
)

func (m *machine) mount(pod *v1.Pod) map[string]string {
	m.t.Helper()
	paths, _, err := m.files.Mount(m.t.Context(), pod)
	if err != nil {
		m.t.Fatal(err)
	}
	return paths
}

func (m *machine) unmount(uid types.UID) {
	m.t.Helper()
	if err := m.files.Unmount(uid); err != nil {
		m.t.Fatal(err)
	}
}

func data(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestPersistentVolume: a volume is staged once for two pods, at upstream's places, and taken away
// with the second.
func TestPersistentVolume(t *testing.T) {
	m := newMachine(t, csidriver.Config{}, volume("pv")...)
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	since := len(m.driver.Calls())
	a, b := podOf("a", "pv"), podOf("b", "pv")
	if path, want := m.mount(a)["pv"],
		filepath.Join(m.root, "pods/a/volumes/kubernetes.io~csi/pv/mount"); path != want {
		t.Errorf("the volume is at %s, want %s", path, want)
	}
	m.mount(a) // nothing is asked again
	m.mount(b)
	if got, want := m.asked(since),
		[]string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	stage := last[*csipb.NodeStageVolumeRequest](t, m.driver, "NodeStageVolume")
	if want := filepath.Join(m.root, "plugins/kubernetes.io/csi",
		driverName); filepath.Dir(filepath.Dir(stage.StagingTargetPath)) != want {
		t.Errorf("staged at %s", stage.StagingTargetPath)
	}
	if got := data(t,
		filepath.Join(filepath.Dir(stage.StagingTargetPath), "vol_data.json")); got["driverName"] != driverName ||
		got["volumeHandle"] != "handle-of-pv" {
		t.Errorf("beside the staged volume: %v", got)
	}
	if got := data(t, filepath.Join(m.root, "pods/b/volumes/kubernetes.io~csi/pv/vol_data.json")); !maps.Equal(got,
		map[string]string{
			"specVolID": "pv", "volumeHandle": "handle-of-pv", "driverName": driverName, "nodeName": nodeName,
			"volumeLifecycleMode": "Persistent",
			"attachmentID":        attachmentName("handle-of-pv", driverName, nodeName),
		}) {
		t.Errorf("beside the pod's volume: %v", got)
	}
	publish := last[*csipb.NodePublishVolumeRequest](t, m.driver, "NodePublishVolume")
	if publish.StagingTargetPath != stage.StagingTargetPath || publish.PublishContext["disk"] != "/dev/x" ||
		publish.VolumeContext["a"] != "1" ||
		publish.VolumeCapability.GetMount().GetFsType() != "ext4" ||
		publish.VolumeCapability.AccessMode.Mode != csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
		t.Errorf("asked to publish: %v", publish)
	}
	if usage := m.files.Stats(t.Context(), b); len(usage) != 1 || usage[0].Claim != "pv" ||
		usage[0].Capacity != 1<<20 || usage[0].InodesFree != 99 {
		t.Errorf("usage: %+v", usage)
	}
	since = len(m.driver.Calls())
	m.unmount("a")
	m.unmount("b")
	m.unmount("b")
	if got, want := m.asked(since),
		[]string{"NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	m.clean()
}

// TestBlock: a device is a link in the pod's directory, at upstream's places.
func TestBlock(t *testing.T) {
	m := newMachine(t, csidriver.Config{}, volume("pv", func(pv *v1.PersistentVolume) {
		pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	})...)
	if err := m.driver.Add("handle-of-pv", true); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{"a", "b"} {
		path := m.mount(podOf(uid, "pv"))["pv"]
		target, err := os.Readlink(path)
		if err != nil || path != filepath.Join(m.root, "pods", string(uid), "volumeDevices/kubernetes.io~csi/pv") ||
			target != filepath.Join(m.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv", string(uid)) {
			t.Errorf("%s is a link to %s: %v", path, target, err)
		}
		if publish := last[*csipb.NodePublishVolumeRequest](t, m.driver,
			"NodePublishVolume"); publish.TargetPath != target || publish.VolumeCapability.GetBlock() == nil ||
			publish.StagingTargetPath != filepath.Join(m.root, "plugins/kubernetes.io/csi/volumeDevices/staging/pv") {
			t.Errorf("asked to publish: %v", publish)
		}
	}
	if got := data(t,
		filepath.Join(m.root,
			"plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json")); got["specVolID"] != "pv" ||
		got["volumeHandle"] != "handle-of-pv" {
		t.Errorf("the device's data: %v", got)
	}
	m.restartKubelet()
	m.unmount("a")
	m.unmount("b")
	m.clean()
}

// TestInline: a volume that a pod describes itself is neither attached nor staged, and goes with
// its pod also when another kubelet takes it away.
func TestInline(t *testing.T) {
	spec := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount: new(true), FSGroupPolicy: new(storagev1.NoneFSGroupPolicy),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
	}}
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "key"},
		Data: map[string][]byte{"k": []byte("v")}}
	m := newMachine(t, csidriver.Config{}, spec, secret)
	pod := podOf("a")
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName, ReadOnly: new(true), VolumeAttributes: map[string]string{"size": "1"},
		NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"},
	}}}}
	m.mount(pod)
	publish := last[*csipb.NodePublishVolumeRequest](t, m.driver, "NodePublishVolume")
	want := map[string]string{
		"size": "1", "csi.storage.k8s.io/pod.name": "pod-a", "csi.storage.k8s.io/pod.namespace": "ns",
		"csi.storage.k8s.io/pod.uid":             "a",
		"csi.storage.k8s.io/serviceAccount.name": "robot", "csi.storage.k8s.io/ephemeral": "true",
	}
	if !strings.HasPrefix(publish.VolumeId, "csi-") || !maps.Equal(publish.VolumeContext, want) || !publish.Readonly ||
		publish.Secrets["k"] != "v" || publish.StagingTargetPath != "" {
		t.Errorf("asked to publish: %v", publish)
	}
	if names, _ := m.plugin.InUse(); len(names) > 0 {
		t.Errorf("in use: %v", names)
	}
	m.restartKubelet()
	m.unmount("a")
	m.clean()
}

// TestLifecycle: a mode that the CSIDriver object does not list is refused.
func TestLifecycle(t *testing.T) {
	only := func(modes ...storagev1.VolumeLifecycleMode) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName},
			Spec: storagev1.CSIDriverSpec{VolumeLifecycleModes: modes}}
	}
	inline := &volumes.Volume{Source: &v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}}
	persistent := &volumes.Volume{PV: volume("pv")[0].(*v1.PersistentVolume)}
	for name, c := range map[string]struct {
		spec *storagev1.CSIDriver
		v    *volumes.Volume
		want string
	}{
		"no object":            {nil, persistent, ""},
		"no object, ephemeral": {nil, inline, "(no CSIDriver object)"},
		"ephemeral":            {only(storagev1.VolumeLifecycleEphemeral), inline, ""},
		"persistent only":      {only(storagev1.VolumeLifecyclePersistent), inline, `(only supports ["Persistent"])`},
		"ephemeral only":       {only(storagev1.VolumeLifecycleEphemeral), persistent, `(only supports ["Ephemeral"])`},
	} {
		if err := supports(c.spec, c.v); (err == nil) != (c.want == "") ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGroupPolicy(t *testing.T) {
	with := func(policy storagev1.FSGroupPolicy) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{FSGroupPolicy: &policy}}
	}
	pv := func(fsType string, mode v1.PersistentVolumeAccessMode) *volumes.Volume {
		return &volumes.Volume{PV: volume("pv", func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.FSType, pv.Spec.AccessModes = fsType, []v1.PersistentVolumeAccessMode{mode}
		})[0].(*v1.PersistentVolume)}
	}
	for name, c := range map[string]struct {
		spec *storagev1.CSIDriver
		v    *volumes.Volume
		want bool
	}{
		"no object, one node":       {nil, pv("ext4", v1.ReadWriteOnce), true},
		"no object, one pod":        {nil, pv("ext4", v1.ReadWriteOncePod), true},
		"no object, many nodes":     {nil, pv("ext4", v1.ReadWriteMany), false},
		"no object, no file system": {nil, pv("", v1.ReadWriteOnce), false},
		"File":                      {with(storagev1.FileFSGroupPolicy), pv("", v1.ReadWriteMany), true},
		"None":                      {with(storagev1.NoneFSGroupPolicy), pv("ext4", v1.ReadWriteOnce), false},
	} {
		if got, err := groupPolicy(c.spec, c.v); err != nil || got != c.want {
			t.Errorf("%s: %t %v", name, got, err)
		}
	}
}

// TestRepublish: a driver that wants it gets the newest tokens again and again.
func TestRepublish(t *testing.T) {
	spec := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: new(false), RequiresRepublish: new(true), FSGroupPolicy: new(storagev1.NoneFSGroupPolicy),
		TokenRequests:        []storagev1.TokenRequest{{Audience: "vault"}},
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
	m := newMachine(t, csidriver.Config{Lacks: []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}}, append(volume("pv"), spec)...)
	m.attaches = false
	now := time.Now()
	m.plugin.Now = func() time.Time { return now }
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	since := len(m.driver.Calls())
	for range 3 {
		_, again, err := m.files.Mount(t.Context(), podOf("a", "pv"))
		if err != nil || again.IsZero() || again.Sub(now) > refreshEvery {
			t.Fatalf("again at %v: %v", again, err)
		}
		now = again
	}
	if got, want := m.asked(since),
		[]string{"NodePublishVolume", "NodePublishVolume", "NodePublishVolume"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	publish := last[*csipb.NodePublishVolumeRequest](t, m.driver, "NodePublishVolume")
	if !strings.Contains(publish.VolumeContext[tokensKey],
		`{"vault":{"token":"token for vault","expirationTimestamp":`) ||
		publish.VolumeCapability.AccessMode.Mode != csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER ||
		publish.StagingTargetPath != "" {
		t.Errorf("asked to publish: %v", publish)
	}
	spec.Spec.ServiceAccountTokenInSecrets = new(true)
	if _, err := m.client.StorageV1().CSIDrivers().Update(t.Context(), spec, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the tokens are in the secrets", func() bool {
		now = now.Add(refreshEvery)
		m.mount(podOf("a", "pv"))
		publish := last[*csipb.NodePublishVolumeRequest](t, m.driver, "NodePublishVolume")
		return publish.Secrets[tokensKey] != "" && publish.VolumeContext[tokensKey] == ""
	})
	// A pod keeps its volume when the driver fails.
	m.driver.Misbehave(func(string) csidriver.Fault { return csidriver.Fail })
	now = now.Add(refreshEvery)
	if _, _, err := m.files.Mount(t.Context(), podOf("a", "pv")); err == nil {
		t.Error("nobody is told that the driver fails")
	}
	m.driver.Misbehave(nil)
	m.unmount("a")
	m.clean()
}

// TestAttachFirst: the driver is asked for nothing before the volume is in use by the node's
// status, and attached.
func TestAttachFirst(t *testing.T) {
	m := newMachine(t, csidriver.Config{}, volume("pv")...)
	m.attaches = false
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	since := len(m.driver.Calls())
	done := make(chan error, 1)
	go func() { // ends when the volume is attached
		_, _, err := m.files.Mount(context.WithoutCancel(t.Context()), podOf("a", "pv"))
		done <- err
	}()
	name := uniqueName(driverName, "handle-of-pv")
	await.True(t, "the volume is in use", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return slices.Contains(m.node.Status.VolumesInUse, name)
	})
	if asked := m.asked(since); len(asked) > 0 {
		t.Errorf("asked before the volume is attached: %q", asked)
	}
	m.mu.Lock()
	m.attaches = true
	m.mu.Unlock()
	m.report(m.plugin)
	if err := await.Value(t, "the volume is mounted", done); err != nil {
		t.Fatal(err)
	}
	m.unmount("a")
	m.clean()
}

// TestAttachLimit: a pod gets the reason that the node takes no more volumes when the driver has
// reported so, and the scheduler finds it in the CSINode object. Other failures and drivers are
// waited for.
func TestAttachLimit(t *testing.T) {
	for _, c := range []struct {
		name   string
		period *int64
		code   *int32
		full   bool
	}{
		{"full", new(int64(60)), new(int32(codes.ResourceExhausted)), true},
		{"another error", new(int64(60)), new(int32(codes.Internal)), false},
		{"an error without a code", new(int64(60)), nil, false},
		{"a driver that is not asked again", nil, new(int32(codes.ResourceExhausted)), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			attachment := &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: attachmentName("handle-of-pv", driverName, nodeName)},
				Status: storagev1.VolumeAttachmentStatus{
					AttachError: &storagev1.VolumeError{Message: "no more", ErrorCode: c.code}}}
			spec := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName},
				Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: c.period}}
			objects := slices.DeleteFunc(volume("pv"),
				func(o runtime.Object) bool { _, ok := o.(*storagev1.VolumeAttachment); return ok })
			m := newMachine(t, csidriver.Config{MaxVolumes: 7}, append(objects, attachment, spec)...)
			m.attaches = false
			m.plugin.patience = time.Millisecond // the test wants the time-out
			count := func() int32 {
				n, err := m.client.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return *n.Spec.Drivers[0].Allocatable.Count
			}
			if n := count(); n != 7 {
				t.Fatalf("the driver takes %d volumes", n)
			}
			m.stopDriver()
			m.config.MaxVolumes = 3
			m.startDriver()
			_, _, err := m.files.Mount(t.Context(), podOf("a", "pv"))
			var full *volumes.AttachLimitError
			if err == nil || errors.As(err, &full) != c.full {
				t.Fatalf("%v", err)
			}
			if n := count(); c.full != (n == 3) {
				t.Errorf("the CSINode object says %d", n)
			}
			const text = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[pv], unattached volumes=[pv], failed to process volumes=[]: timed out waiting"
			if c.full && !strings.HasPrefix(err.Error(), text) {
				t.Errorf("it says %q", err)
			}
			m.unmount("a")
		})
	}
}

// TestVerify: only the attachment itself counts.
func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		a    storagev1.VolumeAttachment
		want string
	}{
		"attached": {storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true}}, ""},
		"going": {storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}},
			Status: storagev1.VolumeAttachmentStatus{Attached: true}}, "volume attachment is being deleted"},
		"failed": {
			storagev1.VolumeAttachment{
				Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no disk"}}},
			"no disk"},
		"soon": {storagev1.VolumeAttachment{}, "is not attached yet"},
	} {
		if err := verify(&c.a); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFinalErrors: after a final error no record is left that the driver may have the volume, and
// the pod ends without the driver. After any other error the driver is asked to undo.
func TestFinalErrors(t *testing.T) {
	for _, c := range []struct {
		fault  csidriver.Fault
		undone bool
	}{{csidriver.Fail, false}, {csidriver.Abort, true}, {csidriver.Lose, true}} {
		m := newMachine(t, csidriver.Config{}, volume("pv")...)
		if err := m.driver.Add("handle-of-pv", false); err != nil {
			t.Fatal(err)
		}
		m.driver.Misbehave(func(method string) csidriver.Fault {
			if method == "NodeStageVolume" {
				return c.fault
			}
			return csidriver.None
		})
		var driver *volumes.DriverError
		if _, _, err := m.files.Mount(t.Context(), podOf("a", "pv")); err == nil || !errors.As(err, &driver) ||
			!strings.HasPrefix(err.Error(), `MountVolume.MountDevice failed for volume "pv" : `) {
			t.Errorf("%v: %v", c.fault, err)
		}
		since := len(m.driver.Calls())
		m.unmount("a")
		if got := slices.Contains(m.asked(since), "NodeUnstageVolume"); got != c.undone {
			t.Errorf("fault %v: asked to undo: %t", c.fault, got)
		}
		m.clean()
	}
}

// TestDriverAway: a volume cannot be had without its driver; a pod that has it keeps it across a
// restart of the kubelet.
func TestDriverAway(t *testing.T) {
	m := newMachine(t, csidriver.Config{}, volume("pv")...)
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	m.mount(podOf("a", "pv"))
	m.stop()
	m.startKubelet()
	if paths, again, err := m.files.Mount(t.Context(), podOf("a", "pv")); err != nil || paths["pv"] == "" ||
		again.IsZero() {
		t.Errorf("a pod that had it: %v %v %v", paths, again, err)
	}
	if _, _, err := m.files.Mount(t.Context(), podOf("b", "pv")); err == nil ||
		!strings.Contains(err.Error(), "driver name "+driverName+" not found in the list of registered CSI drivers") {
		t.Errorf("another pod: %v", err)
	}
	if err := m.files.Unmount("a"); err == nil {
		t.Error("the volume is said to be unmounted")
	}
	m.register()
	if !slices.Contains(m.retried, "b") {
		t.Errorf("tried again at once: %v", m.retried)
	}
	m.unmount("a")
	m.unmount("b")
	m.clean()
}

// TestOrphan: a staged volume without a pod's record is unstaged, and in use until then.
func TestOrphan(t *testing.T) {
	for _, block := range []bool{false, true} {
		m := newMachine(t, csidriver.Config{}, volume("pv", func(pv *v1.PersistentVolume) {
			if block {
				pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
			}
		})...)
		if err := m.driver.Add("handle-of-pv", block); err != nil {
			t.Fatal(err)
		}
		m.driver.Misbehave(func(method string) csidriver.Fault {
			if method == "NodePublishVolume" {
				return csidriver.Fail
			}
			return csidriver.None
		})
		if _, _, err := m.files.Mount(t.Context(), podOf("a", "pv")); err == nil {
			t.Fatal("it is mounted")
		}
		m.driver.Misbehave(nil)
		m.stop()
		if err := os.RemoveAll(m.files.PodDir("a")); err != nil {
			t.Fatal(err)
		}
		m.startKubelet()
		if names, known := m.plugin.InUse(); !known ||
			!slices.Equal(names, []v1.UniqueVolumeName{uniqueName(driverName, "handle-of-pv")}) {
			t.Errorf("in use: %v %t", names, known)
		}
		m.register()
		await.True(t, "the volume is unstaged", func() bool { return len(m.driver.Left()) == 0 })
		await.True(t, "it is in use no more", func() bool { names, _ := m.plugin.InUse(); return len(names) == 0 })
		m.clean()
	}
}

// TestObjects: the Node and the CSINode object have the driver's values for as long as it is there.
func TestObjects(t *testing.T) {
	zone := map[string]string{"topology.example.com/zone": "z"}
	m := newMachine(t, csidriver.Config{MaxVolumes: 7, Topology: zone})
	get := func() (*v1.Node, *storagev1.CSINode) {
		node, err := m.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		csiNode, err := m.client.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return node, csiNode
	}
	node, csiNode := get()
	if node.Annotations[nodeIDs] != `{"csi.example.com":"id-of-n"}` || node.Labels["topology.example.com/zone"] != "z" {
		t.Errorf("node: %v %v", node.Annotations, node.Labels)
	}
	if len(csiNode.Spec.Drivers) != 1 || len(csiNode.OwnerReferences) != 1 || csiNode.OwnerReferences[0].UID != "node" {
		t.Fatalf("CSINode: %+v", csiNode)
	}
	d := csiNode.Spec.Drivers[0]
	if d.Name != driverName || d.NodeID != "id-of-n" ||
		!slices.Equal(d.TopologyKeys, []string{"topology.example.com/zone"}) || *d.Allocatable.Count != 7 {
		t.Errorf("driver: %+v", d)
	}
	if err := m.plugin.objects.count(t.Context(), driverName,
		&csipb.NodeGetInfoResponse{NodeId: "id-of-n", MaxVolumesPerNode: 5,
			AccessibleTopology: &csipb.Topology{Segments: zone}}); err != nil {
		t.Fatal(err)
	}
	if _, csiNode = get(); *csiNode.Spec.Drivers[0].Allocatable.Count != 5 {
		t.Errorf("count: %+v", csiNode.Spec.Drivers[0])
	}
	if err := m.plugin.objects.install(t.Context(), driverName, &csipb.NodeGetInfoResponse{NodeId: "id-of-n",
		AccessibleTopology: &csipb.Topology{
			Segments: map[string]string{"topology.example.com/zone": "elsewhere"}}}); err == nil ||
		!strings.Contains(err.Error(), "topology value collision") {
		t.Errorf("another place: %v", err)
	}
	m.plugin.Deregister(pluginAt(m.config.Socket))
	await.True(t, "the objects do not name the driver", func() bool {
		node, csiNode := get()
		return node.Annotations[nodeIDs] == "" && len(csiNode.Spec.Drivers) == 0
	})
	if node, _ := get(); node.Labels["topology.example.com/zone"] != "z" {
		t.Errorf("labels: %v", node.Labels)
	}
}

// TestNodeMadeAgain: the objects of a Node that was deleted and made again name the driver, too.
func TestNodeMadeAgain(t *testing.T) {
	m := newMachine(t, csidriver.Config{})
	again := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "again"}}
	if err := m.client.StorageV1().CSINodes().Delete(t.Context(), nodeName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.client.CoreV1().Nodes().Delete(t.Context(), nodeName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.client.CoreV1().Nodes().Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.node = again
	m.mu.Unlock()
	m.plugin.Observe()
	await.True(t, "the new objects name the driver", func() bool {
		node, err := m.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil || node.Annotations[nodeIDs] == "" {
			return false
		}
		csiNode, err := m.client.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		return err == nil && len(csiNode.Spec.Drivers) == 1 && csiNode.OwnerReferences[0].UID == "again"
	})
}

// TestCSINodeOfAnother: the object of an earlier node of the name is made anew.
func TestCSINodeOfAnother(t *testing.T) {
	m := newMachine(t, csidriver.Config{}, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "old",
			OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: nodeName, UID: "earlier"}}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "gone.example.com", NodeID: "x"}}},
	})
	got, err := m.client.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || len(got.Spec.Drivers) != 1 || got.Spec.Drivers[0].Name != driverName ||
		got.OwnerReferences[0].UID != "node" {
		t.Errorf("%+v %v", got, err)
	}
}

// TestOnePod: a volume for one pod is not shown to a second one while the first has it.
func TestOnePod(t *testing.T) {
	m := newMachine(t, csidriver.Config{}, volume("pv", func(pv *v1.PersistentVolume) {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	})...)
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	m.mount(podOf("a", "pv"))
	if mode := last[*csipb.NodePublishVolumeRequest](t, m.driver,
		"NodePublishVolume").VolumeCapability.AccessMode.Mode; mode != csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		t.Errorf("access mode %v", mode)
	}
	if _, _, err := m.files.Mount(t.Context(), podOf("b", "pv")); err == nil ||
		!strings.Contains(err.Error(), "is already in use by another pod") {
		t.Errorf("the second pod: %v", err)
	}
	m.unmount("a")
	m.mount(podOf("b", "pv"))
	m.unmount("b")
	m.clean()
}

// TestSecrets: each call of a driver has the Secret that is for it.
func TestSecrets(t *testing.T) {
	secret := func(name string) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "drivers", Name: name},
			Data: map[string][]byte{"for": []byte(name)}}
	}
	ref := func(name string) *v1.SecretReference { return &v1.SecretReference{Namespace: "drivers", Name: name} }
	objects := append(volume("pv", func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = ref("stage"), ref("publish")
		pv.Spec.MountOptions = []string{"noatime"}
	}), runtime.Object(secret("stage")), secret("publish"))
	m := newMachine(t, csidriver.Config{}, objects...)
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	m.mount(podOf("a", "pv"))
	stage, publish := last[*csipb.NodeStageVolumeRequest](t, m.driver, "NodeStageVolume"),
		last[*csipb.NodePublishVolumeRequest](t, m.driver, "NodePublishVolume")
	if stage.Secrets["for"] != "stage" || publish.Secrets["for"] != "publish" {
		t.Errorf("secrets: %v, %v", stage.Secrets, publish.Secrets)
	}
	if flags := stage.VolumeCapability.GetMount().MountFlags; !slices.Equal(flags, []string{"noatime"}) {
		t.Errorf("mount options: %q", flags)
	}
	m.unmount("a")
	m.clean()
}
