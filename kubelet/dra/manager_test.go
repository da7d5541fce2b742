package dra

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/kubelet/plugins"
)

const driverName = "gpu.example.com"

// fakeDriver is a driver with a socket for its registration and its service.
type fakeDriver struct {
	drapb.UnimplementedDRAPluginServer
	registerapi.UnimplementedRegistrationServer
	socket   string
	versions []string

	mu        sync.Mutex
	fails     string
	calls     []string
	told      []*registerapi.RegistrationStatus
	announced chan struct{}
}

// startDriver serves a driver until stop.
func startDriver(t *testing.T, dir string, versions ...string) (d *fakeDriver, stop func()) {
	t.Helper()
	d = &fakeDriver{socket: filepath.Join(dir, "d.sock"), versions: versions, announced: make(chan struct{}, 16)}
	listener, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	drapb.RegisterDRAPluginServer(server, d)
	registerapi.RegisterRegistrationServer(server, d)
	// The messages of the older version are the same on the wire.
	older := drapb.DRAPlugin_ServiceDesc
	older.ServiceName = drapbv1beta1.DRAPlugin_ServiceDesc.ServiceName
	server.RegisterService(&older, d)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	stop = sync.OnceFunc(func() { server.Stop(); <-done })
	t.Cleanup(stop)
	return d, stop
}

func (d *fakeDriver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: driverName, Endpoint: d.socket,
		SupportedVersions: d.versions}, nil
}

func (d *fakeDriver) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	d.mu.Lock()
	d.told = append(d.told, s)
	d.mu.Unlock()
	d.announced <- struct{}{}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *fakeDriver) NodePrepareResources(
	_ context.Context, r *drapb.NodePrepareResourcesRequest,
) (*drapb.NodePrepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]*drapb.NodePrepareResourceResponse{}
	for _, c := range r.Claims {
		d.calls = append(d.calls, "prepare "+c.Name)
		out[c.Uid] = &drapb.NodePrepareResourceResponse{Error: d.fails}
		if d.fails == "" {
			out[c.Uid].Devices = []*drapb.Device{
				{RequestNames: []string{"first"}, CdiDeviceIds: []string{"example.com/gpu=" + c.Name + "-1"}},
				{RequestNames: []string{"second/large"}, CdiDeviceIds: []string{"example.com/gpu=" + c.Name + "-2"}},
				{CdiDeviceIds: []string{"example.com/gpu=common"}},
			}
		}
	}
	return &drapb.NodePrepareResourcesResponse{Claims: out}, nil
}

func (d *fakeDriver) NodeUnprepareResources(
	_ context.Context, r *drapb.NodeUnprepareResourcesRequest,
) (*drapb.NodeUnprepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]*drapb.NodeUnprepareResourceResponse{}
	for _, c := range r.Claims {
		d.calls = append(d.calls, "unprepare "+c.Name)
		out[c.Uid] = &drapb.NodeUnprepareResourceResponse{Error: d.fails}
	}
	return &drapb.NodeUnprepareResourcesResponse{Claims: out}, nil
}

func (d *fakeDriver) set(fails string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = fails
}

// called checks the driver's calls since the last time.
func (d *fakeDriver) called(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.calls, want) {
		t.Errorf("the driver was asked for %v, want %v", d.calls, want)
	}
	d.calls = nil
}

func newManager(t *testing.T, dir string, objects ...runtime.Object) *Manager {
	t.Helper()
	m, err := New(
		Config{NodeName: "n", Client: fake.NewClientset(objects...), Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.drivers.close)
	return m
}

// claimFor is an allocated claim of some pods.
func claimFor(name string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "first", Driver: driverName, Pool: "n", Device: "x"},
		}}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
	}
	return c
}

func podWith(name, claim string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	return p
}

func using(requests ...string) *v1.Container {
	c := &v1.Container{Name: "c"}
	for _, r := range requests {
		c.Resources.Claims = append(c.Resources.Claims, v1.ResourceClaim{Name: "gpu", Request: r})
	}
	return c
}

func TestSharedClaimIsPreparedOnce(t *testing.T) {
	for _, version := range []string{drapb.DRAPluginService, drapbv1beta1.DRAPluginService} {
		t.Run(version, func(t *testing.T) {
			m := newManager(t, t.TempDir(), claimFor("shared", "p", "q"))
			d, _ := startDriver(t, t.TempDir(), version)
			p, q := podWith("p", "shared"), podWith("q", "shared")
			if err := m.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "is not registered") {
				t.Errorf("without a driver: %v", err)
			}
			if err := m.Register(t.Context(),
				plugins.Plugin{Name: driverName, Endpoint: d.socket, Versions: d.versions}); err != nil {
				t.Fatal(err)
			}
			for _, pod := range []*v1.Pod{p, q, p} {
				if err := m.Prepare(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
			d.called(t, "prepare shared")
			for want, c := range map[string]*v1.Container{
				"":                         {Name: "c"},
				"shared-1 shared-2 common": using(""),
				"shared-1 common":          using("first"),
				"shared-2 common":          using("second"),
			} {
				got := strings.ReplaceAll(strings.Join(m.Devices(p, c), " "), "example.com/gpu=", "")
				if got != want {
					t.Errorf("devices of %v: %q, want %q", c.Resources.Claims, got, want)
				}
			}
			if err := m.Unprepare(t.Context(), p.UID); err != nil {
				t.Fatal(err)
			}
			d.called(t)
			if err := m.Unprepare(t.Context(), q.UID); err != nil {
				t.Fatal(err)
			}
			d.called(t, "unprepare shared")
			if left, _ := m.Pods(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestPreparedOutlivesTheProcess: the next kubelet neither prepares again nor forgets to take back.
func TestPreparedOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	d, _ := startDriver(t, t.TempDir(), drapb.DRAPluginService)
	plugin := plugins.Plugin{Name: driverName, Endpoint: d.socket, Versions: d.versions}
	p := podWith("p", "c")
	begin := func() *Manager {
		m := newManager(t, dir, claimFor("c", "p"))
		if err := m.Register(t.Context(), plugin); err != nil {
			t.Fatal(err)
		}
		return m
	}
	d.set("no power")
	m := begin()
	if err := m.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "no power") {
		t.Fatalf("a driver that fails: %v", err)
	}
	d.called(t, "prepare c")
	// The driver may have done half of it: another process takes that back, too.
	m = begin()
	if pods, _ := m.Pods(); !slices.Equal(pods, []types.UID{p.UID}) {
		t.Fatalf("pods %v", pods)
	}
	if err := m.Unprepare(t.Context(), p.UID); err == nil {
		t.Error("a driver that fails is believed")
	}
	d.called(t, "unprepare c")
	d.set("")
	if err := m.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	d.called(t, "prepare c")
	m = begin()
	if err := m.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	d.called(t)
	if got := m.Devices(p, using("first")); !slices.Equal(got,
		[]string{"example.com/gpu=c-1", "example.com/gpu=common"}) {
		t.Errorf("devices %v", got)
	}
	if err := m.Unprepare(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	d.called(t, "unprepare c")
}

func TestPrepareRefuses(t *testing.T) {
	unallocated := claimFor("unallocated", "p")
	unallocated.Status.Allocation = nil
	m := newManager(t, t.TempDir(), claimFor("others", "q"), unallocated)
	for claim, want := range map[string]string{
		"others":      "is not allowed to use resource claim",
		"unallocated": "it has no devices",
		"absent":      "not found",
	} {
		if err := m.Prepare(t.Context(), podWith("p", claim)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", claim, err, want)
		}
	}
	if pods, _ := m.Pods(); len(pods) > 0 {
		t.Errorf("pods %v have devices", pods)
	}
}

func TestExtendedResources(t *testing.T) {
	controller := true
	c := claimFor("c", "p")
	c.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "uid-p", Controller: &controller}}
	m := newManager(t, t.TempDir(), c)
	d, _ := startDriver(t, t.TempDir(), drapb.DRAPluginService)
	if err := m.Register(t.Context(),
		plugins.Plugin{Name: driverName, Endpoint: d.socket, Versions: d.versions}); err != nil {
		t.Fatal(err)
	}
	p := podWith("p", "c")
	p.Spec.ResourceClaims = nil
	p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "c",
		RequestMappings: []v1.ContainerExtendedResourceRequest{
			{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "first"}}}
	if err := m.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := m.Devices(p, using()); !slices.Equal(got, []string{"example.com/gpu=c-1", "example.com/gpu=common"}) {
		t.Errorf("devices %v", got)
	}
	if got := m.Devices(p, &v1.Container{Name: "other"}); len(got) > 0 {
		t.Errorf("devices %v of a container that has none", got)
	}
}

// TestRegistration: a driver is found by its socket, notified, and forgotten when the
// socket is gone.
func TestRegistration(t *testing.T) {
	m := newManager(t, t.TempDir())
	dir := filepath.Join(t.TempDir(), "r")
	registry, err := plugins.New(dir, map[string]plugins.Handler{registerapi.DRAPlugin: m},
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- registry.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	d, stop := startDriver(t, dir, "v1alpha4.Node")
	<-d.announced
	if s := d.told[0]; s.PluginRegistered || !strings.Contains(s.Error, "want one of") {
		t.Errorf("a driver of an old version is told %v", s)
	}
	stop() // removes the socket
	d, stop = startDriver(t, dir, drapb.DRAPluginService)
	<-d.announced
	if s := d.told[0]; !s.PluginRegistered {
		t.Errorf("a driver is told %v", s)
	}
	await.True(t, "the driver is there", func() bool { _, err := m.drivers.get(driverName); return err == nil })
	stop()
	await.True(t, "the driver is gone", func() bool { _, err := m.drivers.get(driverName); return err != nil })
}

// TestAbsentDriversOfferNothing: slices of an earlier process, and of drivers that do not come
// back, are deleted; those of a driver that is updated stay.
func TestAbsentDriversOfferNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		m, err := New(Config{NodeName: "n", Client: client, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var withdrawn []string
		failures := 1
		client.PrependReactor("delete-collection", "resourceslices",
			func(a clienttesting.Action) (bool, runtime.Object, error) {
				if failures--; failures >= 0 {
					return true, nil, errors.New("not now")
				}
				withdrawn = append(withdrawn,
					a.(clienttesting.DeleteCollectionAction).GetListRestrictions().Fields.String())
				return true, nil, nil
			})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		m.drivers.mu.Lock()
		m.drivers.since["went.example.com"] = time.Now()
		m.drivers.since["updated.example.com"] = time.Now()
		m.drivers.mu.Unlock()
		time.Sleep(10 * time.Second)
		m.drivers.mu.Lock()
		delete(m.drivers.since, "updated.example.com") // as Register does
		m.drivers.mu.Unlock()
		time.Sleep(5 * time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := []string{"spec.nodeName=n", "spec.driver=went.example.com,spec.nodeName=n"}
		if !slices.Equal(withdrawn, want) {
			t.Errorf("withdrawn: %q, want %q", withdrawn, want)
		}
	})
}
