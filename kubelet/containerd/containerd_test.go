package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/kubelet/bundle"
)

// The test binary has two more roles, by its first argument or environment: containerd itself, as
// in the barque binary, and the body of a test in namespaces of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		if err := Main(context.Background(), os.Args[2:]); err != nil {
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
	const untested = "pods on a real containerd"
	if _, err := bundle.Open(); errors.Is(err, bundle.ErrNotBundled) {
		needs.Missing(t, "the node components (run `make bundle`)", untested)
	}
	return apart.Run(t, apart.Mounts, 6*time.Minute, untested)
}

// TestPodOutlivesContainerd is the life of a node: a pod started through CRI
// goes on when containerd is killed and when the supervisor stops, is found
// again by the next one, and Purge leaves nothing of it.
func TestPodOutlivesContainerd(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	// Short, because a socket's path has to be.
	dataDir, err := os.MkdirTemp("", "barque-containerd-")
	if err != nil {
		t.Fatal(err)
	}
	cgroup := "/barque/test-" + filepath.Base(dataDir)
	t.Cleanup(func() {
		if err := errors.Join(Purge(context.Background(), dataDir, cgroup), os.RemoveAll(dataDir)); err != nil {
			t.Error(err)
		}
	})
	l, err := newLayout(dataDir)
	if err != nil {
		t.Fatal(err)
	}

	first := start(t, dataDir)
	writeCNI(t, first.CNIConfDir())
	cri := dial(t, first.Socket())
	sandbox, address := startPod(t, cri, cgroup)
	hello(t, address)

	// kill -9: the supervisor brings it back, the pod answers all the time.
	killed := containerdPID(t, l)
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	hello(t, address)
	eventually(t, "a new containerd", func() error {
		if pid := containerdPID(t, l); pid == killed {
			return errors.New("still the killed one")
		}
		return first.Healthy()
	})
	running(t, cri, sandbox)

	// An orderly stop leaves the pod alone too.
	first.stop()
	if _, err := os.Stat(filepath.Join("/proc", fmt.Sprint(killed))); err == nil {
		t.Error("the killed containerd is still there")
	}
	hello(t, address)
	second := start(t, dataDir)
	running(t, cri, sandbox)
	hello(t, address)
	second.stop()

	// Nor does a start of containerd while the machine does not let the shim run.
	thaw := freeze(t, l, sandbox)
	waking := time.AfterFunc(7*time.Second, thaw) // brief: containerd's own default gives it 5 s
	third := start(t, dataDir)
	if waking.Stop() {
		t.Fatal("containerd served before the shim had answered: the test proves nothing")
	}
	running(t, cri, sandbox)
	hello(t, address)
	third.stop()

	for range 2 { // Purge is idempotent
		if err := Purge(context.Background(), dataDir, cgroup); err != nil {
			t.Fatal(err)
		}
	}
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if strings.Contains(strings.Join(p.args, " "), dataDir) && p.pid != os.Getpid() {
			t.Errorf("still runs: %q", p.args)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dataDir) {
		t.Errorf("still mounted below %s:\n%s", dataDir, mounts)
	}
	if _, err := os.Stat(l.shimSockets()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", l.shimSockets(), err)
	}
	if notes, _ := filepath.Glob(filepath.Join(cniResults, "*"+sandbox+"*")); len(notes) != 0 {
		t.Errorf("left: %v", notes)
	}
	for _, hierarchy := range []string{"", "memory", "pids", "systemd", "unified"} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", hierarchy, cgroup)); err == nil {
			t.Errorf("cgroup %s is left in %q", cgroup, hierarchy)
		}
	}
}

// freeze stops the shim of a sandbox until the function that it returns is called.
func freeze(t *testing.T, l layout, sandbox string) (thaw func()) {
	t.Helper()
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.isShim(l) && slices.Contains(p.args, sandbox) {
			if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			thaw := func() { _ = syscall.Kill(p.pid, syscall.SIGCONT) }
			t.Cleanup(thaw)
			return thaw
		}
	}
	t.Fatalf("no process is the shim of %s", sandbox)
	return nil
}

// TestHalfMadePodIsRemoved: the next containerd ends a sandbox that a killed containerd knew and
// CRI did not, and its address is free again.
func TestHalfMadePodIsRemoved(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early=%v", early), func(t *testing.T) { testHalfMadePodIsRemoved(t, early) })
	}
}

func testHalfMadePodIsRemoved(t *testing.T, early bool) {
	dataDir, err := os.MkdirTemp("", "barque-containerd-")
	if err != nil {
		t.Fatal(err)
	}
	cgroup := "/barque/test-" + filepath.Base(dataDir)
	t.Cleanup(func() {
		if err := errors.Join(Purge(context.Background(), dataDir, cgroup), os.RemoveAll(dataDir)); err != nil {
			t.Error(err)
		}
	})
	l, err := newLayout(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, dataDir)
	writeCNI(t, s.CNIConfDir())
	lost, address := startPod(t, dial(t, s.Socket()), cgroup)
	hello(t, address)
	forget(t, s.Socket())
	// It may have been killed even before the CNI library took its note.
	notes, err := cniNotes(l)
	if err != nil || len(notes) != 1 || early && os.Remove(notes[0].path) != nil {
		t.Fatalf("notes: %v, %v", notes, err)
	}
	killed := containerdPID(t, l)
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new containerd", func() error {
		if pid := containerdPID(t, l); pid == killed {
			return errors.New("still the killed one")
		}
		return s.Healthy()
	})
	eventually(t, "the end of the pod", func() error {
		all, err := processes()
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.isShim(l) || p.inCgroup(func(path string) bool { return strings.HasPrefix(path, cgroup+"/") }) {
				return fmt.Errorf("still runs: %q", p.args)
			}
		}
		return nil
	})
	first := sockets(t, l)
	killed = containerdPID(t, l)
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no socket of a dead shim", func() error {
		if pid := containerdPID(t, l); pid == killed {
			return errors.New("still the killed one")
		}
		if err := s.Healthy(); err != nil {
			return err
		}
		if left := sockets(t, l); len(left) != 0 {
			return fmt.Errorf("of %v are left: %v", first, left)
		}
		return nil
	})
	for _, pattern := range []string{
		filepath.Join(s.CNIConfDir(), "ipam/test/10.42.9.*"), filepath.Join(cniResults, "*"+lost+"*"),
		filepath.Join(l.state(), "io.containerd.grpc.v1.cri/netns/*"),
	} {
		if left, _ := filepath.Glob(pattern); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
	next, address := startPod(t, dial(t, s.Socket()), cgroup) // the same name is free
	hello(t, address)
	running(t, dial(t, s.Socket()), next)
}

func sockets(t *testing.T, l layout) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(l.shimSockets(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// forget removes the metadata from containerd's database by which CRI finds its pods.
func forget(t *testing.T, socket string) {
	t.Helper()
	conn, err := client.New(socket, client.WithDefaultNamespace(criNamespace))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sandboxes, err := conn.SandboxStore().List(namespaces.WithNamespace(t.Context(), criNamespace))
	if err != nil {
		t.Fatal(err)
	}
	for _, sandbox := range sandboxes {
		if err := conn.SandboxStore().Delete(namespaces.WithNamespace(t.Context(), criNamespace),
			sandbox.ID); err != nil {
			t.Fatal(err)
		}
	}
	containers, err := conn.Containers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, container := range containers {
		if err := conn.ContainerService().Delete(namespaces.WithNamespace(t.Context(), criNamespace),
			container.ID()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLeftoverContainerd: one containerd per data directory, also after a Barque
// that could not end its own.
func TestLeftoverContainerd(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	dataDir, err := os.MkdirTemp("", "barque-containerd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(Purge(context.Background(), dataDir, ""), os.RemoveAll(dataDir)); err != nil {
			t.Error(err)
		}
	})
	l, err := newLayout(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	start(t, dataDir).stop() // writes the configuration
	leftover := exec.Command("/proc/self/exe", Command, "--config", l.config())
	if err := leftover.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- leftover.Wait() }()

	s := start(t, dataDir)
	if _, err := readProcess(leftover.Process.Pid); err == nil {
		t.Error("the leftover still runs beside the new one")
		_ = leftover.Process.Kill()
	}
	<-ended
	if pid := containerdPID(t, l); pid == leftover.Process.Pid {
		t.Error("no new containerd")
	}
	s.stop()
}

// running supervisor under test.
type started struct {
	*Supervisor
	stop func()
}

func start(t *testing.T, dataDir string) started {
	t.Helper()
	s, err := New(Config{DataDir: dataDir, Command: []string{"/proc/self/exe", Command},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var once bool
	stop := func() {
		cancel()
		if once {
			return
		}
		once = true
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	select {
	case <-s.Ready():
	case err := <-ended:
		ended <- nil
		t.Fatalf("Run ended early: %v", err)
	case <-time.After(time.Minute):
		t.Fatalf("not ready: %v", s.Healthy())
	}
	return started{s, stop}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func writeCNI(t *testing.T, dir string) {
	t.Helper()
	conf := `{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"ptp",
		"ipam":{"type":"host-local","dataDir":"` + dir + `/ipam","ranges":[[{"subnet":"10.42.9.0/24"}]]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "10-test.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startPod runs the hello image and returns its sandbox and address.
func startPod(t *testing.T, conn *grpc.ClientConn, cgroup string) (id, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cri := runtimeapi.NewRuntimeServiceClient(conn)
	eventually(t, "the pod network", func() error {
		status, err := cri.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, condition := range status.Status.Conditions {
			if !condition.Status &&
				(condition.Type == runtimeapi.RuntimeReady || condition.Type == runtimeapi.NetworkReady) {
				return errors.New(condition.Message)
			}
		}
		return nil
	})
	pod := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "hello", Namespace: "default", Uid: "u1"},
		Hostname:     "hello",
		LogDirectory: t.TempDir(),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: cgroup},
	}
	began := time.Now()
	sandbox, err := cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	container, err := cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "hello"},
			Image:    &runtimeapi.ImageSpec{Image: bundle.HelloImage},
			LogPath:  "hello.log",
			Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
				},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cri.StartContainer(ctx,
		&runtimeapi.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		t.Fatal(err)
	}
	t.Logf("pod started in %v", time.Since(began))
	status, err := cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.PodSandboxId})
	if err != nil {
		t.Fatal(err)
	}
	return sandbox.PodSandboxId, status.Status.Network.Ip
}

// running fails the test unless CRI lists the sandbox as ready and its one container as running.
func running(t *testing.T, conn *grpc.ClientConn, sandbox string) {
	t.Helper()
	cri := runtimeapi.NewRuntimeServiceClient(conn)
	containers, err := cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(containers.Containers) != 1 ||
		containers.Containers[0].State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("containers: %v, want one that runs", containers.Containers)
	}
	status, err := cri.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	if status.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Errorf("sandbox is %v", status.Status.State)
	}
}

// hello asks the pod over its address.
func hello(t *testing.T, address string) {
	t.Helper()
	url := "http://" + net.JoinHostPort(address, "8080") + "/healthz"
	eventually(t, url, func() error {
		answer, err := http.Get(url)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
}

func containerdPID(t *testing.T, l layout) int {
	t.Helper()
	pid := 0
	eventually(t, "a containerd process", func() error {
		all, err := processes()
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.isContainerd(l) {
				pid = p.pid
				return nil
			}
		}
		return errors.New("none")
	})
	return pid
}

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	await.NoError(t, what, func(context.Context) error { return try() })
}
