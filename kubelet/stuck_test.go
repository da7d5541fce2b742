package kubelet_test

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/bundle"
	"github.com/barque/barque/kubelet/cri"
)

// TestStuckTask: containerd keeps the task of a container whose start was cancelled at a certain
// moment, and refuses to remove the container then. The container and its sandbox are removed all
// the same.
func TestStuckTask(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	runtime, err := cri.Dial(f.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	native, err := client.New(strings.TrimPrefix(f.socket, "unix://"), client.WithDefaultNamespace("k8s.io"))
	if err != nil {
		t.Fatal(err)
	}
	defer native.Close()
	plain := runtimeapi.NewRuntimeServiceClient(native.Conn().(grpc.ClientConnInterface))

	ctx := t.Context()
	for _, name := range []string{"container", "sandbox"} {
		pod := &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
			Hostname: name, LogDirectory: t.TempDir(),
			Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: f.cgroup + "/" + name},
		}
		box, err := runtime.RunPodSandbox(ctx, pod, "")
		if err != nil {
			t.Fatal(err)
		}
		id, err := runtime.CreateContainer(ctx, box, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, LogPath: "c.log",
			Image: &runtimeapi.ImageSpec{Image: bundle.HelloImage}, Linux: &runtimeapi.LinuxContainerConfig{},
		}, pod)
		if err != nil {
			t.Fatal(err)
		}
		container, err := native.LoadContainer(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := container.NewTask(ctx, cio.NullIO); err != nil {
			t.Fatal(err)
		}
		_, err = plain.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		if status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("the runtime is not stuck: %v", err)
		}
		if name == "container" {
			if err := runtime.RemoveContainer(ctx, id); err != nil {
				t.Errorf("remove the container: %v", err)
			}
		}
		if err := runtime.StopPodSandbox(ctx, box); err != nil {
			t.Errorf("stop the sandbox: %v", err)
		}
		if err := runtime.RemovePodSandbox(ctx, box); err != nil {
			t.Errorf("remove the sandbox: %v", err)
		}
		if _, err := native.LoadContainer(ctx, id); !errdefs.IsNotFound(err) {
			t.Errorf("the container is left: %v", err)
		}
	}
}
