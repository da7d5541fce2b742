package volumes

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/localpv"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/kubelet/volumes/hostmount"
	"github.com/barque/barque/kubelet/volumes/localdirs"
)

// claimsOf serves fixed claims and volumes.
type claimsOf struct {
	claims  map[string]*v1.PersistentVolumeClaim
	volumes map[string]*v1.PersistentVolume
}

func (c claimsOf) Claim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	if claim := c.claims[namespace+"/"+name]; claim != nil {
		return claim, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, name)
}

func (c claimsOf) Volume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	if pv := c.volumes[name]; pv != nil {
		return pv, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, name)
}

// boundTo serves one claim, data, that is bound to a volume.
func boundTo(pv *v1.PersistentVolume) claimsOf {
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: "data", UID: "claim"}
	return claimsOf{
		claims: map[string]*v1.PersistentVolumeClaim{"ns/data": {
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "claim"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: pv.Name},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}},
		volumes: map[string]*v1.PersistentVolume{pv.Name: pv},
	}
}

// claimant is a pod with a claim, data, as its volume v.
func claimant(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{
			Name: "v",
			VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
		}}}}
}

func localPV(name, path string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "pv"}, Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
	}}
}

// ownPV is a volume of the cluster's provisioner.
func ownPV(name string, local *localdirs.Dirs) *v1.PersistentVolume {
	pv := localPV(name, localpv.Path(local.Root(), name))
	pv.Annotations = map[string]string{localpv.ProvisionedBy: localpv.Provisioner}
	return pv
}

func TestBound(t *testing.T) {
	for name, c := range map[string]struct {
		change func(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, pod *v1.Pod)
		want   string
	}{
		"bound": {func(*v1.PersistentVolumeClaim, *v1.PersistentVolume, *v1.Pod) {}, ""},
		"pending": {
			func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) { c.Status.Phase = v1.ClaimPending },
			"error processing PVC ns/data: PVC is not bound"},
		"lost": {
			func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) { c.Status.Phase = v1.ClaimLost },
			"PVC is not bound"},
		"deleted": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) {
			c.DeletionTimestamp = &metav1.Time{}
		}, "error processing PVC ns/data: PVC is being deleted"},
		"no claim": {func(_ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, p *v1.Pod) {
			p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "gone"
		},
			`error processing PVC ns/gone: failed to fetch PVC from API server: persistentvolumeclaims "gone" not found`},
		"no volume": {
			func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, _ *v1.Pod) { c.Spec.VolumeName = "gone" },
			`failed to fetch PV gone from API server`},
		"unbound volume": {
			func(_ *v1.PersistentVolumeClaim, v *v1.PersistentVolume, _ *v1.Pod) { v.Spec.ClaimRef = nil },
			"found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"},
		"the volume of an earlier claim": {
			func(_ *v1.PersistentVolumeClaim, v *v1.PersistentVolume, _ *v1.Pod) { v.Spec.ClaimRef.UID = "earlier" },
			"pv.Spec.ClaimRef.UID earlier does not point to claim.UID claim"},
		"a device wanted as files": {func(_ *v1.PersistentVolumeClaim, v *v1.PersistentVolume, p *v1.Pod) {
			v.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
			p.Spec.Containers = []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "v"}}}}
		}, "volume v has volumeMode Block, but is specified in volumeMounts"},
		"files wanted as a device": {func(_ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{VolumeDevices: []v1.VolumeDevice{{Name: "v"}}}}
		}, "volume v has volumeMode Filesystem, but is specified in volumeDevices"},
		"another's claim under the name of an ephemeral one": {
			func(_ *v1.PersistentVolumeClaim, _ *v1.PersistentVolume, p *v1.Pod) {
				p.Name = "data"
				p.Spec.Volumes[0] = v1.Volume{Name: "x",
					VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}
			}, "failed to fetch PVC"},
	} {
		claims, pod := boundTo(localPV("pv", "/x")), claimant("u")
		c.change(claims.claims["ns/data"], claims.volumes["pv"], pod)
		_, err := bound(t.Context(), claims, pod, &pod.Spec.Volumes[0])
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEphemeralClaim(t *testing.T) {
	claims, pod := boundTo(localPV("pv", "/x")), claimant("u")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
	claims.claims["ns/p-v"] = claims.claims["ns/data"]
	if _, err := bound(t.Context(), claims, pod, &pod.Spec.Volumes[0]); err == nil ||
		!strings.Contains(err.Error(), "was not created for pod") {
		t.Errorf("the claim of nobody: %v", err)
	}
	claims.claims["ns/p-v"].OwnerReferences = []metav1.OwnerReference{{UID: "u", Controller: new(true)}}
	if pv, err := bound(t.Context(), claims, pod, &pod.Spec.Volumes[0]); err != nil || pv.Name != "pv" {
		t.Errorf("its own claim: %v %v", pv, err)
	}
}

func newManager(t *testing.T, root string, claims Claims, local *localdirs.Dirs) *Manager {
	t.Helper()
	return New(
		Config{RootDir: root, Claims: claims, Local: local, Objects: objectsOf{}, Tokens: oneToken{},
			Bundles: noTrust{}, Certificates: noTrust{},
			Node: func() *v1.Node {
				return &v1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{v1.LabelHostname: "n"}}}
			},
			Allocatable: func() v1.ResourceList { return nil }})
}

// TestLocalVolume: the data of a volume outlives its pod, and another process than the one that has
// mounted it.
func TestLocalVolume(t *testing.T) {
	needs.Root(t, "mounts of persistent volumes")
	root := t.TempDir()
	local, err := localdirs.New(filepath.Join(root, "volumes"), remembered{})
	if err != nil {
		t.Fatal(err)
	}
	claims := boundTo(ownPV("pv", local))
	t.Cleanup(func() {
		if err := (hostmount.Mounter{}).Unmount(root); err != nil {
			t.Error(err)
		}
	})
	m := newManager(t, root, claims, local)
	for range 2 { // the second finds it done
		paths, _, err := m.Mount(t.Context(), claimant("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(paths["v"], "f"), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(local.Root(), "pv")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the directory: %v %v", info, err)
	}
	if used, err := m.InUse("pv"); err != nil || !used {
		t.Errorf("in use: %t %v", used, err)
	}
	// A new process, while no API server answers.
	m = newManager(t, root, claimsOf{}, local)
	if _, _, err := m.Mount(t.Context(), claimant("a")); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	m = newManager(t, root, claimsOf{}, local)
	for range 2 {
		if err := m.Unmount("a"); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := m.Pods(); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
	if data, err := os.ReadFile(filepath.Join(local.Root(), "pv", "f")); err != nil || string(data) != "kept" {
		t.Fatalf("the data: %q %v", data, err)
	}
	if used, err := m.InUse("pv"); err != nil || used {
		t.Errorf("in use after its pod: %t %v", used, err)
	}

	reader := claimant("b")
	reader.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	m = newManager(t, root, claims, local)
	paths, _, err := m.Mount(t.Context(), reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(paths["v"], "f"), nil, 0o600); err == nil {
		t.Error("a volume that is read only was written to")
	}
	if err := m.Unmount("b"); err != nil {
		t.Fatal(err)
	}
}

func TestLocalVolumeThatIsMissing(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "no")
	m := newManager(t, root, boundTo(localPV("pv", path)), nil)
	_, _, err := m.Mount(t.Context(), claimant("a"))
	if want := `MountVolume.NewMounter initialization failed for volume "pv" : path "` + path +
		`" does not exist`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := m.Unmount("a"); err != nil {
		t.Error(err)
	}
}

// TestVolumeOfAnotherNode: a directory of the same path is not made on the wrong node.
func TestVolumeOfAnotherNode(t *testing.T) {
	root := t.TempDir()
	local, err := localdirs.New(filepath.Join(root, "volumes"), remembered{})
	if err != nil {
		t.Fatal(err)
	}
	pv := ownPV("pv", local)
	pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"other"}}},
	}}}}
	m := newManager(t, root, boundTo(pv), local)
	_, _, err = m.Mount(t.Context(), claimant("a"))
	if err == nil || !strings.HasPrefix(err.Error(), `MountVolume.NodeAffinity check failed for volume "pv" : `) {
		t.Error(err)
	}
	if names, err := local.Names(); err != nil || len(names) != 0 {
		t.Errorf("made: %v %v", names, err)
	}
}

// TestStagedDevice: pods share one mount of a device, which goes with the last of them, even if an
// earlier process has mounted it.
func TestStagedDevice(t *testing.T) {
	needs.Root(t, "file systems on local block devices")
	root := t.TempDir()
	image := filepath.Join(root, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", image).Output()
	if err != nil {
		needs.Missing(t, "loop devices and losetup", "file systems on local block devices")
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if err := (hostmount.Mounter{}).Unmount(root); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v %s", device, err, out)
		}
	})
	claims := boundTo(localPV("pv", device))
	first, second := newManager(t, root, claims, nil), newManager(t, root, claims, nil)
	for i, m := range []*Manager{first, second} {
		pod := claimant(types.UID("ab"[i : i+1]))
		pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(4711))}
		paths, _, err := m.Mount(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(paths["v"], string(pod.UID)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	staged := filepath.Join(first.plugins, "kubernetes.io/local-volume", "mounts", "pv")
	entries, err := os.ReadDir(staged)
	if err != nil || len(entries) != 3 { // with lost+found
		t.Errorf("staged: %v %v", entries, err)
	}
	info, err := os.Stat(staged)
	if stat, ok := info.Sys().(*syscall.Stat_t); err != nil || !ok || stat.Gid != 4711 {
		t.Errorf("the group of the file system: %v %v", info, err)
	}
	third := newManager(t, root, claimsOf{}, nil)
	for i, uid := range []types.UID{"a", "b"} {
		if err := third.Unmount(uid); err != nil {
			t.Fatal(err)
		}
		if mounted, err := (hostmount.Mounter{}).Mounted(staged); err != nil || mounted != (i == 0) {
			t.Errorf("after pod %s it is staged: %t %v", uid, mounted, err)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	limited := func(limits ...string) *v1.Pod {
		p := &v1.Pod{}
		for _, l := range limits {
			c := v1.Container{}
			if l != "" {
				c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(l)}
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		return p
	}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		said string
		node int64
		want int64
	}{
		"nothing is said":              {limited(""), "", 0, 0},
		"the node's":                   {limited(""), "", 1000, 1000},
		"the volume's":                 {limited(""), "10", 1000, 10},
		"the containers'":              {limited("10", "20"), "40", 1000, 30},
		"one container has no limit":   {limited("10", ""), "40", 1000, 40},
		"the volume's is the smallest": {limited("10", "20"), "5", 1000, 5},
	} {
		var said *resource.Quantity
		if c.said != "" {
			said = new(resource.MustParse(c.said))
		}
		if got := memoryLimit(c.pod, said, c.node); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestNFSArguments(t *testing.T) {
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{MountOptions: []string{"nfsvers=4.1", "soft"},
		PersistentVolumeSource: v1.PersistentVolumeSource{
			NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/x", ReadOnly: true}}}}
	inline := &v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/y"}}
	for _, c := range []struct {
		v    Volume
		want string
	}{
		{Volume{PV: pv, Dir: "/d"}, "[fd00::1]:/x /d -o nfsvers=4.1,soft,ro"},
		{Volume{Source: inline, Dir: "/d"}, "nas:/y /d"},
		{Volume{Source: inline, Dir: "/d", ReadOnly: true}, "nas:/y /d -o ro"},
	} {
		if got := strings.Join(nfsArguments(&c.v), " "); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// remembered is the record of made directories, outside of the disk.
type remembered map[string]bool

func (r remembered) MayMake(_ context.Context, pv *v1.PersistentVolume, _ func() (bool, error)) error {
	if r[pv.Name] {
		return errors.New("made before, and gone")
	}
	return nil
}

func (r remembered) Made(_ context.Context, pv *v1.PersistentVolume) error {
	r[pv.Name] = true
	return nil
}
