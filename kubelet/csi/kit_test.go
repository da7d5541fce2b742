package csi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/cluster-test/csidriver"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/kubelet/plugins"
	"github.com/barque/barque/kubelet/volumes"
	"github.com/barque/barque/kubelet/volumes/hostmount"
	"github.com/barque/barque/kubelet/volumes/selinux"
)

const (
	driverName = "csi.example.com"
	nodeName   = "n"
)

// pretend are mounts that exist in memory only. They outlive kubelets and drivers.
type pretend struct {
	mu    sync.Mutex
	bound map[string]string
}

func (p *pretend) Tmpfs(string, int64, hostmount.Root) error     { return nil }
func (p *pretend) HugePages(string, int64, hostmount.Root) error { return nil }
func (p *pretend) Bind(string, string, hostmount.Bind) error     { return errors.New("nobody binds here") }
func (p *pretend) BindBelow(root, path, target string) error     { return nil }
func (p *pretend) Release(string) error                          { return nil }

func (p *pretend) Mounted(dir string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.bound[dir]
	return ok, nil
}

// Unmount removes the mounts that a driver has forgotten, of which there must be none.
func (p *pretend) Unmount(dir string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for target := range p.bound {
		if strings.HasPrefix(target, dir+"/") {
			return errors.New(target + " is still mounted")
		}
	}
	return nil
}

// driverHost are the same mounts for the driver.
type driverHost struct{ *pretend }

func (h driverHost) Bind(source, target string, _ bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bound[target] = source
	return os.MkdirAll(target, 0o750)
}

func (h driverHost) Unbind(target string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.bound, target)
	return nil
}

// nothing serves pods that have neither ConfigMaps nor trust bundles nor certificates.
type nothing struct {
	volumes.Objects
	volumes.TrustBundles
	volumes.Certificates
}

func (nothing) Forget(types.UID) {}

// tokenOf hands out the audience as token.
type tokenOf struct{}

func (tokenOf) Get(_ context.Context, _ *v1.Pod, audience string, _ int64) (string, time.Time, error) {
	return audience, time.Time{}, nil
}

func (tokenOf) Token(
	_ context.Context, _ *v1.Pod, audience string, _ int64,
) (authenticationv1.TokenRequestStatus, time.Time, error) {
	return authenticationv1.TokenRequestStatus{Token: "token for " + audience}, time.Now().Add(time.Hour), nil
}

func (tokenOf) Forget(types.UID) {}

// machine is a node with a driver. Its kubelet and its driver can be started again.
type machine struct {
	t          *testing.T
	root       string // the kubelet's
	driverRoot string
	client     *fake.Clientset
	mounts     *pretend
	config     csidriver.Config
	driver     *csidriver.Driver
	stopDriver func()
	timeout    time.Duration // of the kubelet's calls, unless zero
	fileLabel  selinux.FileLabel

	plugin *Plugin
	files  *volumes.Manager
	stop   func()

	mu       sync.Mutex
	node     *v1.Node
	attaches bool // volumes that are in use are attached at once
	events   []string
	retried  []types.UID
}

// newMachine starts a node. The driver is the one of config, and registered.
func newMachine(t *testing.T, config csidriver.Config, objects ...runtime.Object) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node"}}
	m := &machine{
		t: t, root: filepath.Join(dir, "kubelet"), driverRoot: filepath.Join(dir, "driver"),
		client: fake.NewClientset(append(objects, node)...),
		mounts: &pretend{bound: map[string]string{}}, config: config, node: node, attaches: true,
	}
	if err := os.MkdirAll(m.driverRoot, 0o700); err != nil {
		t.Fatal(err)
	}
	m.config.Name, m.config.Node, m.config.Root = driverName, "id-of-"+nodeName, m.driverRoot
	m.config.Host, m.config.Socket = driverHost{m.mounts}, filepath.Join(dir, "d.sock")
	m.startDriver()
	m.startKubelet()
	t.Cleanup(func() { m.stop(); m.stopDriver() })
	m.register()
	return m
}

func (m *machine) startDriver() {
	m.t.Helper()
	d, err := csidriver.New(m.config)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with stopDriver
		defer close(done)
		if err := d.Serve(ctx); err != nil {
			m.t.Error(err)
		}
	}()
	m.driver, m.stopDriver = d, sync.OnceFunc(func() { cancel(); <-done })
	// The file is there before it is listened to.
	await.NoError(m.t, "the driver listens", func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", m.config.Socket)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (m *machine) startKubelet() {
	claims := volumes.RequestedClaims{Client: m.client}
	var plugin *Plugin
	plugin = New(Config{
		NodeName: nodeName, RootDir: m.root, Client: m.client, Claims: claims, Tokens: tokenOf{}, Mounts: m.mounts,
		Logger: slog.New(slog.DiscardHandler),
		Node:   func() *v1.Node { m.mu.Lock(); defer m.mu.Unlock(); return m.node },
		Look:   func() { m.report(plugin) },
		Retry:  func(uid types.UID) { m.mu.Lock(); defer m.mu.Unlock(); m.retried = append(m.retried, uid) },
		Event: func(_ runtime.Object, _, reason, message string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.events = append(m.events, reason+" "+message)
		},
	})
	files := volumes.New(volumes.Config{
		RootDir: m.root, Objects: nothing{}, Tokens: tokenOf{}, Claims: claims, Bundles: nothing{},
		Certificates: nothing{}, Mounts: m.mounts,
		Node: func() *v1.Node { return &v1.Node{} }, Drivers: plugin, Changed: plugin.Changed,
		Allocatable: func() v1.ResourceList { return nil },
		FileLabel:   m.fileLabel,
	})
	plugin.Use(files.Records)
	if m.timeout > 0 {
		plugin.timeout = m.timeout
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		if err := plugin.Run(ctx); err != nil {
			m.t.Error(err)
		}
	}()
	m.plugin, m.files, m.stop = plugin, files, sync.OnceFunc(func() { cancel(); <-done })
	await.True(m.t, "the CSIDriver objects are known", plugin.synced)
}

// report writes the node's status, as the kubelet's reporter and the attaching controller do.
func (m *machine) report(plugin *Plugin) {
	names, known := plugin.InUse()
	if !known {
		return
	}
	m.mu.Lock()
	node := m.node.DeepCopy()
	node.Status.VolumesInUse = names
	if m.attaches {
		node.Status.VolumesAttached = nil
		for _, name := range names {
			node.Status.VolumesAttached = append(node.Status.VolumesAttached, v1.AttachedVolume{Name: name})
		}
	}
	m.node = node
	m.mu.Unlock()
	plugin.Observe()
}

func (m *machine) register() {
	m.t.Helper()
	if err := m.plugin.Register(m.t.Context(),
		plugins.Plugin{Name: driverName, Endpoint: m.config.Socket, Versions: []string{"1.0.0"}}); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) restartKubelet() {
	m.stop()
	m.startKubelet()
	m.register()
}

// asked lists the methods of the driver's calls from number since on.
func (m *machine) asked(since int) []string {
	var methods []string
	for _, c := range m.driver.Calls()[since:] {
		methods = append(methods, c.Method)
	}
	return methods
}

// clean checks that nothing is left, and that the driver was not misused.
func (m *machine) clean() {
	m.t.Helper()
	if left := m.driver.Left(); len(left) > 0 {
		m.t.Errorf("left at the driver: %q", left)
	}
	if wrong := m.driver.Violations(); len(wrong) > 0 {
		m.t.Errorf("the driver was misused: %q", wrong)
	}
	if len(m.mounts.bound) > 0 {
		m.t.Errorf("left mounts: %v", m.mounts.bound)
	}
	if names, known := m.plugin.InUse(); !known || len(names) > 0 {
		m.t.Errorf("in use: %v %t", names, known)
	}
	for _, of := range []string{"pods/*", "plugins/kubernetes.io/csi/" + driverName + "/*",
		"plugins/kubernetes.io/csi/volumeDevices/*/*"} {
		if left, _ := filepath.Glob(filepath.Join(m.root, of)); len(left) > 0 {
			m.t.Errorf("left on the disk: %q", left)
		}
	}
}

// volume is a PV of the driver with its claim, and the attachment that it needs.
func volume(name string, change ...func(*v1.PersistentVolume)) []runtime.Object {
	handle := "handle-of-" + name
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			ClaimRef:    &v1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: handle, FSType: "ext4", VolumeAttributes: map[string]string{"a": "1"},
			}},
		}}
	for _, c := range change {
		c(pv)
	}
	return []runtime.Object{pv,
		&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: pv.Spec.AccessModes},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		},
		&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: attachmentName(handle, driverName, nodeName)},
			Status: storagev1.VolumeAttachmentStatus{Attached: true,
				AttachmentMetadata: map[string]string{"disk": "/dev/x"}},
		},
	}
}

// podOf is a pod with volumes of claims.
func podOf(uid types.UID, claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + string(uid), UID: uid},
		Spec: v1.PodSpec{ServiceAccountName: "robot"}}
	for _, claim := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	return p
}

func last[T any](t *testing.T, d *csidriver.Driver, method string) T {
	t.Helper()
	calls := d.Calls()
	slices.Reverse(calls)
	for _, c := range calls {
		if c.Method == method {
			return c.Request.(T)
		}
	}
	t.Fatalf("the driver was not asked for %s", method)
	panic("unreachable")
}
