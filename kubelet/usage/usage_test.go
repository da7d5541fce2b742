package usage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/cri"
)

// node is a runtime with groups.
type node struct {
	boxes      []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	layers     []*runtimeapi.ContainerStats
	err        error
	slow       chan struct{} // layers are not measured before it is closed
	asked      int           // for layers

	groups map[types.UID]string
	stats  map[string]cgroups.Stats
}

func (n *node) ListPodSandboxes(context.Context, map[string]string) ([]*runtimeapi.PodSandbox, error) {
	return n.boxes, n.err
}

func (n *node) ListContainers(context.Context, map[string]string) ([]*runtimeapi.Container, error) {
	return n.containers, n.err
}

func (n *node) ListContainerStats(context.Context, map[string]string) ([]*runtimeapi.ContainerStats, error) {
	n.asked++
	if n.slow != nil {
		<-n.slow
	}
	return n.layers, n.err
}

func (n *node) Groups() (map[types.UID]string, error) { return n.groups, nil }

func (n *node) Stats(group string) (cgroups.Stats, error) {
	s, ok := n.stats[group]
	if !ok {
		return s, fs.ErrNotExist
	}
	return s, nil
}

func (n *node) Processes(string) ([]int, error) { return []int{os.Getpid()}, nil }

func sandbox(id, uid string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: id, State: state,
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: uid}}
}

func container(id, box, name string, state runtimeapi.ContainerState) *runtimeapi.Container {
	return &runtimeapi.Container{Id: id, PodSandboxId: box, State: state,
		Labels: map[string]string{cri.LabelContainerName: name}}
}

func used(d time.Duration) cgroups.Stats { return cgroups.Stats{CPU: &cgroups.CPUStats{Total: d}} }

func TestPods(t *testing.T) {
	n := &node{
		boxes: []*runtimeapi.PodSandbox{
			sandbox("old", "u", runtimeapi.PodSandboxState_SANDBOX_NOTREADY),
			sandbox("new", "u", runtimeapi.PodSandboxState_SANDBOX_READY),
			sandbox("ended", "e", runtimeapi.PodSandboxState_SANDBOX_NOTREADY),
		},
		containers: []*runtimeapi.Container{
			container("c1", "old", "c", runtimeapi.ContainerState_CONTAINER_EXITED),
			container("c2", "new", "c", runtimeapi.ContainerState_CONTAINER_RUNNING),
			container("fresh", "new", "d", runtimeapi.ContainerState_CONTAINER_RUNNING),
			container("c4", "new", "e", runtimeapi.ContainerState_CONTAINER_RUNNING),
		},
		groups: map[types.UID]string{"u": "/pods/u"},
		stats: map[string]cgroups.Stats{"/pods/u": used(3), "/pods/u/c2": used(2), "/pods/u/c1": used(9),
			"/pods/u/crio-c4": used(4)},
	}
	now := time.Unix(100, 0)
	m := New(n, n, func() time.Time { return now })
	pods, err := m.Pods(t.Context())
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d pods, %v", len(pods), err)
	}
	p := pods[0]
	if p.UID != "u" || p.Namespace != "ns" || p.Name != "p" || p.Group != "/pods/u" || p.CPU.Total != 3 ||
		!p.At.Equal(now) || p.CPURate != nil || p.Network != nil {
		t.Errorf("the pod: %+v", p)
	}
	if len(p.Containers) != 4 || p.Containers[0].Running || !p.Containers[0].At.IsZero() ||
		p.Containers[1].Name != "c" || p.Containers[1].CPU.Total != 2 ||
		p.Containers[1].Group != "/pods/u/c2" || !p.Containers[2].Running || !p.Containers[2].At.IsZero() ||
		p.Containers[3].Group != "/pods/u/crio-c4" {
		t.Errorf("its containers: %+v", p.Containers)
	}
	if e := pods[1]; e.UID != "e" || !e.At.IsZero() || e.Group != "" {
		t.Errorf("a pod that has ended: %+v", e)
	}
	n.err = errors.New("the runtime is away")
	if pods, err := m.Pods(t.Context()); err == nil || pods != nil {
		t.Errorf("without a runtime: %v %v", pods, err)
	}
}

// TestRates: a rate covers the time since the last measurement. Two that come together share one.
func TestRates(t *testing.T) {
	n := &node{boxes: []*runtimeapi.PodSandbox{sandbox("b", "u", runtimeapi.PodSandboxState_SANDBOX_READY)},
		groups: map[types.UID]string{"u": "/u"}, stats: map[string]cgroups.Stats{}}
	now := time.Unix(100, 0)
	m := New(n, n, func() time.Time { return now })
	for _, step := range []struct {
		after, total time.Duration
		want         time.Duration // 0 is none
	}{
		{0, 5 * time.Second, 0},
		{10 * time.Second, 10 * time.Second, 500 * time.Millisecond},
		{10 * time.Millisecond, 20 * time.Second, 500 * time.Millisecond},
		{time.Second, 10 * time.Second, 0}, // exactly 0 in a second
		{time.Second, time.Second, 0},      // the group was made anew
	} {
		now = now.Add(step.after)
		n.stats["/u"] = used(step.total)
		pods, err := m.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r := pods[0].CPURate; (r == nil || *r == 0) != (step.want == 0) || r != nil && *r != step.want {
			t.Errorf("after %s with %s: %v, want %s", step.after, step.total, r, step.want)
		}
	}
	n.boxes = nil
	if _, err := m.Pods(t.Context()); err != nil || len(m.rates) != 0 {
		t.Errorf("%d rates of groups that are gone: %v", len(m.rates), err)
	}
}

// TestLayers: the runtime is asked once for as long as an answer holds, and callers at the same
// time share a question. One that gives up leaves the answer to the others.
func TestLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{
			layers: []*runtimeapi.ContainerStats{
				{Attributes: &runtimeapi.ContainerAttributes{Id: "c"}, WritableLayer: &runtimeapi.FilesystemUsage{
					Timestamp: 5, UsedBytes: &runtimeapi.UInt64Value{Value: 7},
					InodesUsed: &runtimeapi.UInt64Value{Value: 2}}},
				{Attributes: &runtimeapi.ContainerAttributes{Id: "unknown"}},
			},
			slow: make(chan struct{}),
		}
		m := New(n, n, nil)
		pods := []*Pod{{Containers: []Container{{ID: "c"}, {ID: "unknown"}}}}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.AddLayers(impatient, pods, time.Minute); !errors.Is(err, context.DeadlineExceeded) ||
			pods[0].Containers[0].Layer != nil {
			t.Errorf("while the runtime does not answer: %v", err)
		}
		go func() { time.Sleep(time.Second); close(n.slow) }()
		for range 3 {
			if err := m.AddLayers(t.Context(), pods, time.Minute); err != nil {
				t.Error(err)
			}
		}
		if got := pods[0].Containers[0].Layer; !reflect.DeepEqual(got, &Layer{time.Unix(0, 5), 7, 2}) ||
			pods[0].Containers[1].Layer != nil || n.asked != 1 {
			t.Errorf("%+v, after %d questions", got, n.asked)
		}
		time.Sleep(20 * time.Second)
		n.err, pods[0].Containers[0].Layer = errors.New("the runtime is away"), nil
		if err := m.AddLayers(t.Context(), pods, 10*time.Second); !errors.Is(err, n.err) ||
			pods[0].Containers[0].Layer == nil || n.asked != 2 {
			t.Errorf("an earlier figure is lost, or not told to be one: %v", err)
		}
	})
}

func TestInterfaces(t *testing.T) {
	const text = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n" +
		"    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0\n" +
		"  eth1:1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n"
	at := time.Unix(1, 0)
	list, err := parseInterfaces("dev", text, at)
	want := Interface{"eth1", at, Traffic{1, 2, 3, 4}, Traffic{5, 6, 7, 8}}
	if err != nil || len(list) != 2 || list[0].Name != "lo" || list[1] != want {
		t.Errorf("%+v, %v", list, err)
	}
	for _, bad := range []string{"eth0: 1 2 3\n", "eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 x\n"} {
		if _, err := parseInterfaces("dev", bad, at); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if own, err := Host(at); err != nil || len(own) == 0 {
		t.Errorf("of this machine: %v %v", own, err)
	}
	if !ownNetwork(os.Getpid()) {
		t.Error("this process is not in its own network")
	}
	p := Pod{Network: []Interface{{Name: "net1"}, {Name: "eth0"}}}
	if p.Default().Name != "eth0" || (&Pod{Network: p.Network[:1]}).Default().Name != "net1" ||
		(&Pod{}).Default() != nil {
		t.Error("the main interface is another one")
	}
}
