package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/kubelet/volumes/hostmount"
)

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		walk(t, filepath.Join(dir, e.Name()), e.Name(), got)
	}
	return got
}

func walk(t *testing.T, path, name string, into map[string]string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !info.IsDir() {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		into[name] = string(data)
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		walk(t, filepath.Join(path, e.Name()), name+"/"+e.Name(), into)
	}
}

// objectsOf serves fixed objects.
type objectsOf struct {
	maps    map[string]*v1.ConfigMap
	secrets map[string]*v1.Secret
}

func (o objectsOf) ConfigMap(_ context.Context, _ *v1.Pod, name string) (*v1.ConfigMap, error) {
	if m := o.maps[name]; m != nil {
		return m, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (o objectsOf) Secret(_ context.Context, _ *v1.Pod, name string) (*v1.Secret, error) {
	if s := o.secrets[name]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func (objectsOf) Forget(types.UID) {}

type oneToken struct{ until time.Time }

func (o oneToken) Get(context.Context, *v1.Pod, string, int64) (string, time.Time, error) {
	return "jwt", o.until, nil
}
func (oneToken) Forget(types.UID) {}

// noTrust has neither bundles nor certificates.
type noTrust struct {
	TrustBundles
	Certificates
}

func (noTrust) Forget(types.UID) {}

// noMounts records mounts and makes none.
type noMounts struct{ tmpfs []string }

func (m *noMounts) Tmpfs(dir string, _ int64, _ hostmount.Root) error {
	m.tmpfs = append(m.tmpfs, filepath.Base(dir))
	return nil
}
func (*noMounts) HugePages(string, int64, hostmount.Root) error { return nil }
func (*noMounts) Bind(string, string, hostmount.Bind) error     { return nil }
func (*noMounts) BindBelow(string, string, string) error        { return nil }
func (*noMounts) Mounted(string) (bool, error)                  { return false, nil }
func (*noMounts) Unmount(string) error                          { return nil }
func (*noMounts) Release(string) error                          { return nil }

func TestMountKinds(t *testing.T) {
	optional, mode := true, int32(0o400)
	seven := time.Now().Add(time.Hour)
	mounts := &noMounts{}
	m := New(
		Config{RootDir: t.TempDir(), Mounts: mounts, Tokens: oneToken{seven}, Bundles: noTrust{},
			Certificates: noTrust{}, Allocatable: func() v1.ResourceList { return nil },
			Objects: objectsOf{
				maps: map[string]*v1.ConfigMap{
					"cm": {Data: map[string]string{"x": "1", "y": "2"}, BinaryData: map[string][]byte{"z": {3}}}},
				secrets: map[string]*v1.Secret{"s": {Data: map[string][]byte{"k": []byte("v")}}}}})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Labels: map[string]string{"b": "2", "a": "1"}}}
	pod.Spec.Volumes = []v1.Volume{
		{Name: "all",
			VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}}},
		{Name: "some",
			VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"},
					Items: []v1.KeyToPath{{Key: "y", Path: "to/why", Mode: &mode}}}}},
		{Name: "none",
			VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "gone"},
					Optional: &optional}}},
		{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}},
		{Name: "mixed",
			VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
				{DownwardAPI: &v1.DownwardAPIProjection{
					Items: []v1.DownwardAPIVolumeFile{
						{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
				{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "s"}}}}}}},
		{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
	}
	pod.Spec.Containers = []v1.Container{
		{VolumeMounts: []v1.VolumeMount{{Name: "secret", MountPath: "/secret"},
			{Name: "all", MountPath: "/secret/below/it"}, {Name: "all", MountPath: "/secret/k", SubPath: "x"}}}}
	paths, next, err := m.Mount(context.Background(), pod)
	if err != nil {
		t.Fatal(err)
	}
	for volume, want := range map[string]map[string]string{
		"all": {"x": "1", "y": "2", "z": "\x03"}, "some": {"to/why": "2"}, "none": {}, "secret": {"k": "v"},
		"mixed": {"token": "jwt", "labels": "a=\"1\"\nb=\"2\"", "k": "v"}, "empty": {},
	} {
		if got := read(t, paths[volume]); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s shows %v, want %v", volume, got, want)
		}
	}
	if info, err := os.Stat(filepath.Join(paths["secret"], "below/it")); err != nil || !info.IsDir() ||
		info.Mode().Perm() != 0o755 {
		t.Errorf("a place for the mount in the secret: %v %v", info, err)
	}
	slices.Sort(mounts.tmpfs)
	if !slices.Equal(mounts.tmpfs, []string{"mixed", "secret"}) {
		t.Errorf("on tmpfs: %v", mounts.tmpfs)
	}
	if !next.Equal(seven) {
		t.Errorf("to be looked at again at %v, want %v", next, seven)
	}
	if info, err := os.Stat(paths["empty"]); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("emptyDir: %v %v", info.Mode(), err)
	}
	counts := map[string]Count{}
	for _, c := range m.Counts() {
		counts[c.Plugin] = c
	}
	if c := counts["kubernetes.io/configmap"]; len(counts) != 4 || c.Wanted != 3 || c.SetUp != 3 {
		t.Errorf("counted: %+v", counts)
	}
	if err := m.Unmount("u"); err != nil {
		t.Fatal(err)
	}
	if left := m.Counts(); len(left) != 0 {
		t.Errorf("counted after the end: %+v", left)
	}
	if left, err := m.Pods(); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}

	for _, bad := range []v1.VolumeSource{
		{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "gone"}}},
		{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"},
			Items: []v1.KeyToPath{{Key: "no", Path: "no"}}}},
		{CephFS: &v1.CephFSVolumeSource{}},
	} {
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: bad}}
		if _, _, err := m.Mount(context.Background(), pod); err == nil ||
			!strings.Contains(err.Error(), `volume "v"`) &&
				!strings.Contains(err.Error(), "failed to process volumes=[v]") {
			t.Errorf("%+v: %v", bad, err)
		}
		if c := m.Counts(); bad.ConfigMap != nil && (len(c) != 1 || c[0].Wanted != 1 || c[0].SetUp != 0) {
			t.Errorf("%+v: counted %+v", bad, c)
		}
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind v1.HostPathType
		path string
		ok   bool
	}{
		{v1.HostPathUnset, filepath.Join(dir, "no"), true},
		{v1.HostPathDirectory, dir, true}, {v1.HostPathDirectory, file, false},
		{v1.HostPathDirectory, filepath.Join(dir, "no"), false},
		{v1.HostPathDirectoryOrCreate, filepath.Join(dir, "new"), true}, {v1.HostPathFile, file, true},
		{v1.HostPathFile, dir, false},
		{v1.HostPathFileOrCreate, filepath.Join(dir, "made"), true},
		{v1.HostPathFileOrCreate, filepath.Join(dir, "no", "made"), false},
		{v1.HostPathCharDev, "/dev/null", true}, {v1.HostPathBlockDev, "/dev/null", false},
		{v1.HostPathSocket, file, false},
	} {
		if err := ensureHostPath(&v1.HostPathVolumeSource{Path: c.path, Type: &c.kind}); (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.kind, c.path, err)
		}
	}
}

// TestEmptyDirInMemory: the pod's group has it at first, and the pod's own changes of
// its mode stay.
func TestEmptyDirInMemory(t *testing.T) {
	needs.Root(t, "emptyDir volumes in memory")
	group := int64(4711)
	pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: &group}}}
	volume := &Volume{Name: "keys", Dir: filepath.Join(t.TempDir(), "keys"),
		Source: &v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}
	p := emptyDirs{hostmount.Mounter{}, func() v1.ResourceList { return nil }}
	t.Cleanup(func() {
		if err := p.TearDown(volume); err != nil {
			t.Error(err)
		}
	})
	for _, want := range []fs.FileMode{0o777 | fs.ModeSetgid, 0o700} {
		if _, _, err := p.SetUp(t.Context(), pod, volume); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(volume.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 4711 || info.Mode() != want|fs.ModeDir {
			t.Errorf("group %d, mode %s; want 4711 and %s", gid, info.Mode(), want|fs.ModeDir)
		}
		if err := os.Chmod(volume.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRelabels: the runtime gives its label to the files of the pod, and leaves those of others
// alone.
func TestRelabels(t *testing.T) {
	block := v1.PersistentVolumeBlock
	for name, c := range map[string]struct {
		volume  *Volume
		plugin  Plugin
		want    bool
		options string // of the mount at its path
	}{
		"emptyDir":         {volume: &Volume{}, plugin: emptyDirs{}, want: true},
		"projected":        {volume: &Volume{}, plugin: projections{}, want: true},
		"hostPath":         {volume: &Volume{}, plugin: hostPaths{}, options: "seclabel"},
		"image":            {volume: &Volume{}, plugin: imageVolumes{}},
		"NFS":              {volume: &Volume{}, plugin: nfs{}},
		"local":            {volume: &Volume{}, plugin: locals{}, want: true},
		"local, read-only": {volume: &Volume{ReadOnly: true}, plugin: locals{}},
		"local device": {
			volume: &Volume{PV: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{VolumeMode: &block}}},
			plugin: locals{}},
		"a driver's, without room": {volume: &Volume{}, plugin: someDriver{}, options: "rw,noseclabel"},
		"a driver's":               {volume: &Volume{}, plugin: someDriver{}, options: "rw,seclabel", want: true},
		"a driver's, read-only":    {volume: &Volume{ReadOnly: true}, plugin: someDriver{}, options: "ro,seclabel"},
	} {
		m := &Manager{
			resolved: map[types.UID]map[string]*resolved{
				"u": {"v": {Volume: c.volume, plugin: c.plugin, path: "/its"}}},
			options: func(path string) (string, error) {
				if path != "/its" {
					return "", errors.New("another path")
				}
				return c.options, nil
			}}
		if got := m.Relabels("u", "v"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		if m.Relabels("u", "other") || m.Relabels("x", "v") {
			t.Error("a volume that is not known")
		}
	}
}

type someDriver struct{ Plugin }
