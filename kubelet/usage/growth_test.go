package usage_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/eviction"
	"github.com/barque/barque/kubelet/usage"
)

// containerd answers as containerd 2.4.2 does, and counts the cost of that. It has as many pods as
// have begun: each with a sandbox, some without a container.
type containerd struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	pods, withContainer int

	listed   atomic.Int64 // sandboxes and containers in answers
	measured atomic.Int64 // tasks whose shim was asked
}

func (c *containerd) ListPodSandbox(
	context.Context, *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	c.listed.Add(int64(c.pods))
	resp := &runtimeapi.ListPodSandboxResponse{}
	for i := range c.pods {
		uid := fmt.Sprint("u", i)
		resp.Items = append(resp.Items,
			&runtimeapi.PodSandbox{Id: "box-" + uid,
				Metadata: &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "ns", Uid: uid}})
	}
	return resp, nil
}

func (c *containerd) ListContainers(
	context.Context, *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	c.listed.Add(int64(c.withContainer))
	resp := &runtimeapi.ListContainersResponse{}
	for i := range c.withContainer {
		resp.Containers = append(resp.Containers,
			&runtimeapi.Container{Id: fmt.Sprint("c", i), PodSandboxId: fmt.Sprint("box-u", i),
				State: runtimeapi.ContainerState_CONTAINER_RUNNING})
	}
	return resp, nil
}

// measure asks the shims of containers. A filter that selects none becomes one that selects all
// tasks, those of sandboxes among them.
func (c *containerd) measure(selected int) {
	if selected == 0 {
		selected = c.pods + c.withContainer
	}
	c.measured.Add(int64(selected))
}

func (c *containerd) ListContainerStats(
	context.Context, *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	c.measure(c.withContainer)
	return &runtimeapi.ListContainerStatsResponse{}, nil
}

func (c *containerd) ListPodSandboxStats(
	context.Context, *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	for i := range c.pods {
		c.measure(min(max(c.withContainer-i, 0), 1))
	}
	return &runtimeapi.ListPodSandboxStatsResponse{}, nil
}

// groups counts how many are measured.
type groups struct {
	of   map[types.UID]string
	read int
}

func (g *groups) Groups() (map[types.UID]string, error) { return g.of, nil }
func (g *groups) Stats(string) (cgroups.Stats, error)   { g.read++; return cgroups.Stats{}, nil }
func (g *groups) Processes(group string) ([]int, error) { return nil, nil }

// TestWorkGrowsWithPods: measuring ten times as many pods, for scrapes and for evictions, is ten
// times the work of the runtime and of this process, whether their containers have begun or not.
func TestWorkGrowsWithPods(t *testing.T) {
	work := func(pods, withContainer int) map[string]int64 {
		c := &containerd{pods: pods, withContainer: withContainer}
		socket := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		runtimeapi.RegisterRuntimeServiceServer(server, c)
		go server.Serve(listener) // ends with Stop
		defer server.Stop()
		client, err := cri.Dial("unix://" + socket)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()

		g := &groups{of: map[types.UID]string{}}
		var list []*v1.Pod
		for i := range pods {
			uid := types.UID(fmt.Sprint("u", i))
			g.of[uid] = "/" + string(uid)
			list = append(list, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
		}
		meter := usage.New(client, g, nil)
		for range 2 { // scrapes
			measured, err := meter.Pods(t.Context())
			if err != nil || len(measured) != pods {
				t.Fatalf("%d of %d pods, %v", len(measured), pods, err)
			}
			if err := meter.AddLayers(t.Context(), measured, 1<<40); err != nil {
				t.Fatal(err)
			}
		}
		machine := &eviction.Machine{Usage: meter, PodDir: func(types.UID) string { return t.TempDir() },
			LogDir: func(*v1.Pod) string { return t.TempDir() }}
		if _, err := machine.Pods(t.Context(), list, func(*v1.Pod) bool { return false }); err != nil {
			t.Fatal(err)
		}
		return map[string]int64{"listed": c.listed.Load(), "measured by shims": c.measured.Load(),
			"groups read": int64(g.read)}
	}
	for name, begun := range map[string]func(pods int) int{
		"no container has begun": func(int) int { return 0 }, "half have": func(pods int) int { return pods / 2 },
		"all have": func(pods int) int { return pods },
	} {
		t.Run(name, func(t *testing.T) {
			few, many := work(20, begun(20)), work(200, begun(200))
			for what := range few {
				if many[what] > 10*few[what] || many["groups read"] == 0 {
					t.Errorf("%s: %d with 20 pods, %d with 200", what, few[what], many[what])
				}
			}
		})
	}
}
