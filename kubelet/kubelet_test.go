package kubelet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/kubelet"
	"github.com/barque/barque/kubelet/bundle"
	"github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/kubelet/exits"
	"github.com/barque/barque/kubelet/shutdown"
)

// These tests run a kubelet over a real containerd, runc and network, in namespaces of their own,
// and an API server in memory. The test binary also serves as containerd and as the body
// of the test.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == killable {
		if err := runKillable(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == containerd.Command {
		if err := containerd.Main(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// inNamespaces runs the calling test again in a process with its own network and mount namespaces;
// it returns true in that process.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	const untested = "the kubelet on a real containerd"
	if _, err := bundle.Open(); errors.Is(err, bundle.ErrNotBundled) {
		needs.Missing(t, "the node components (run `make bundle`)", untested)
	}
	return apart.Run(t, apart.Mounts, 6*time.Minute, untested)
}

// fixture is a node with nothing on it yet.
type fixture struct {
	t       *testing.T
	dataDir string
	cgroup  string
	api     *fake.Clientset
	socket  string
	exits   exits.Dir
	ca      *authority // of the node's server; none without

	stopRuntime func() // stops containerd

	settings *config.Configuration
	logind   func(context.Context) (shutdown.Logind, error)
}

const nodeName = "n1"

func newFixture(t *testing.T) *fixture {
	dataDir, err := os.MkdirTemp("", "barque-kubelet-") // short: a socket's path has to be
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, dataDir: dataDir, cgroup: "/barque/" + filepath.Base(dataDir), api: fake.NewClientset(),
		settings: config.Default()}
	// The machine's full disk must neither refuse pods nor remove images.
	f.settings.EvictionHard = map[string]string{"memory.available": "100Mi"}
	f.settings.ImageGCHighThresholdPercent = new(int32(100))
	t.Cleanup(func() {
		if err := errors.Join(containerd.Purge(context.Background(), dataDir, f.cgroup),
			os.RemoveAll(dataDir)); err != nil {
			t.Error(err)
		}
	})
	supervisor, err := containerd.New(containerd.Config{DataDir: dataDir, Logger: f.logger()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(supervisor.CNIConfDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	const conf = `{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.98.0.0/24"}]],"dataDir":"%s"}}]}`
	if err := os.WriteFile(filepath.Join(supervisor.CNIConfDir(), "10-test.conflist"),
		fmt.Appendf(nil, conf, filepath.Join(dataDir, "ipam")), 0o644); err != nil {
		t.Fatal(err)
	}
	f.socket, f.exits = supervisor.Socket(), supervisor.Exits()
	f.run(supervisor)
	return f
}

// run keeps containerd running until stopRuntime is called.
func (f *fixture) run(supervisor *containerd.Supervisor) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- supervisor.Run(ctx) }()
	f.stopRuntime = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(f.stopRuntime)
	select {
	case <-supervisor.Ready():
	case <-time.After(time.Minute):
		f.t.Fatal("containerd did not become ready")
	}
}

// startRuntime starts containerd again after stopRuntime.
func (f *fixture) startRuntime() {
	f.t.Helper()
	supervisor, err := containerd.New(containerd.Config{DataDir: f.dataDir, Logger: f.logger()})
	if err != nil {
		f.t.Fatal(err)
	}
	f.run(supervisor)
}

func (f *fixture) logger() *slog.Logger {
	level := slog.LevelWarn
	if os.Getenv("BARQUE_TEST_VERBOSE") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// start runs a kubelet until stop is called.
func (f *fixture) start() (stop func()) {
	f.t.Helper()
	factory := informers.NewSharedInformerFactory(f.api, 0)
	c := kubelet.Config{
		Pods:     factory.Core().V1().Pods().Informer(),
		NodeName: nodeName, NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Client: f.api,
		RuntimeEndpoint: f.socket, Exits: f.exits, RootDir: filepath.Join(f.dataDir, "kubelet"),
		LogDir:     filepath.Join(f.dataDir, "logs"),
		CgroupRoot: f.cgroup, ClusterDomain: "cluster.local", Version: "v1.37.2+barque", Logger: f.logger(),
		Settings: f.settings, Logind: f.logind,
	}
	if f.ca != nil {
		c.ServerAddress, c.ServerTLS = serverAddress, f.ca.serverTLS(f.t)
	}
	k, err := kubelet.New(c)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	factory.Start(ctx.Done())
	go func() { ended <- k.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
		factory.Shutdown()
	}
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) create(pod *v1.Pod) *v1.Pod {
	f.t.Helper()
	pod.UID = types.UID("uid-" + pod.Name)
	pod.Namespace = "default"
	pod.Spec.NodeName = nodeName
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = v1.RestartPolicyAlways
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/termination-log", v1.TerminationMessageReadFile
	}
	made, err := f.api.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return made
}

func (f *fixture) get(name string) *v1.Pod {
	pod, err := f.api.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return pod
}

// eventually waits until the pod is as wanted.
func (f *fixture) eventually(name, what string, ok func(*v1.Pod) bool) *v1.Pod {
	f.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(await.Hang)
	for {
		pod := f.get(name)
		if ok(pod) {
			return pod
		}
		select {
		case <-ticker.C:
		case <-limit:
			f.t.Fatalf("pod %s is not %s: %+v", name, what, pod)
		}
	}
}

func ready(p *v1.Pod) bool {
	if p == nil || p.Status.Phase != v1.PodRunning {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// deletePod changes a pod as an API server does on a graceful deletion.
func (f *fixture) deletePod(name string, grace int64) {
	pod := f.get(name).DeepCopy()
	now := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	if _, err := f.api.CoreV1().Pods("default").Update(context.Background(), pod, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func hello(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "hello", Image: "barque.local/hello:1", ImagePullPolicy: v1.PullIfNotPresent,
		}}},
	}
}

// TestLifeOfAPod runs one pod from its binding to its end, over a restart of the kubelet.
func TestLifeOfAPod(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	stop := f.start()
	began := time.Now()
	f.create(hello("first"))
	pod := f.eventually("first", "ready", ready)
	t.Logf("the first pod was ready after %s", time.Since(began))
	began = time.Now()
	f.create(hello("second"))
	f.eventually("second", "ready", ready)
	t.Logf("the second pod was ready after %s", time.Since(began))
	if pod.Status.PodIP == "" || pod.Status.StartTime == nil || pod.Status.HostIP == "" {
		t.Errorf("incomplete status: %+v", pod.Status)
	}
	id := pod.Status.ContainerStatuses[0].ContainerID

	stop()
	stop = f.start()
	again := f.eventually("first", "ready", ready)
	if again.Status.ContainerStatuses[0].ContainerID != id || again.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod did not survive the kubelet: %+v", again.Status.ContainerStatuses)
	}

	f.deletePod("first", 5)
	f.eventually("first", "gone", func(p *v1.Pod) bool { return p == nil })
	f.deletePod("second", 5)
	f.eventually("second", "gone", func(p *v1.Pod) bool { return p == nil })
	stop()
	left, err := filepath.Glob("/sys/fs/cgroup/*" + f.cgroup + "/kubepods/*/pod*")
	if err != nil || len(left) > 0 {
		t.Errorf("cgroups are left: %v %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(f.dataDir+"/kubelet")) {
		t.Errorf("mounts are left: %v", err)
	}
	if dirs, err := os.ReadDir(filepath.Join(f.dataDir, "kubelet", "pods")); err != nil || len(dirs) > 0 {
		t.Errorf("directories are left: %v %v", dirs, err)
	}
}
