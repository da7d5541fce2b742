package allocation

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/admission"
)

// managed returns a manager of a node with 10 CPUs, and a list of the woken pods.
func managed(t *testing.T, file string) (*Manager, *[]types.UID) {
	t.Helper()
	woken := &[]types.UID{}
	m, err := New(Config{File: file, Logger: slog.New(slog.DiscardHandler),
		Node: func() *v1.Node {
			return &v1.Node{
				Status: v1.NodeStatus{
					Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("10"),
						v1.ResourceMemory: resource.MustParse("10Gi")}}}
		},
		Host:    func() admission.Input { return admission.Input{} },
		Preempt: func(types.UID) {},
		Wake:    func(uid types.UID) { *woken = append(*woken, uid) }})
	if err != nil {
		t.Fatal(err)
	}
	return m, woken
}

func pod(uid string, cpus int) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Generation: 1},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c",
			Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI)}}}}}}
}

func resized(p *v1.Pod, cpus int) *v1.Pod {
	p = p.DeepCopy()
	p.Generation++
	p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewQuantity(int64(cpus), resource.DecimalSI)
	return p
}

func cpus(p *v1.Pod) int64 {
	return p.Spec.Containers[0].Resources.Requests.Cpu().Value()
}

func TestNewPodsWaitForTheOldOnes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	m, _ := managed(t, file)
	m.Synced()
	if a := m.Answer(pod("old", 8), false); a.Refused != nil || a.Waiting {
		t.Fatalf("the first pod: %+v", a)
	}
	m, _ = managed(t, file)
	if a := m.Answer(pod("new", 8), false); !a.Waiting {
		t.Errorf("before all pods are known: %+v", a)
	}
	m.Known(pod("old", 8))
	m.Known(pod("new", 8))
	m.Synced()
	if a := m.Answer(pod("new", 8), false); a.Refused == nil {
		t.Error("the old pod was not counted")
	}
	if a := m.Answer(pod("old", 8), false); a.Refused != nil || a.Waiting {
		t.Errorf("a pod that runs: %+v", a)
	}
}

func TestWhatWasGivenOutlivesTheProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	m, _ := managed(t, file)
	m.Synced()
	a, b := pod("a", 4), pod("b", 4)
	m.Answer(a, false)
	m.Answer(b, false)
	a = resized(a, 7)
	if got := m.Answer(a, true); cpus(got.Pod) != 4 || got.Pending == nil ||
		got.Pending.Reason != v1.PodReasonDeferred || got.Generation != 1 {
		t.Errorf("a resize without room: %+v", got)
	}
	m, woken := managed(t, file)
	m.Known(a)
	m.Known(b)
	m.Synced()
	if got := m.Answer(a, true); cpus(got.Pod) != 4 || got.Pending == nil || got.EverResized {
		t.Errorf("after a restart: %+v", got)
	}
	m.Release("b")
	if !slices.Equal(*woken, []types.UID{"a"}) {
		t.Errorf("woken: %v", *woken)
	}
	if got := m.Answer(a, true); cpus(got.Pod) != 7 || got.Pending != nil || !got.Resized || got.Generation != 2 {
		t.Errorf("with room: %+v", got)
	}
	if got := m.Answer(a, true); got.Resized || !got.EverResized {
		t.Errorf("a resize that was told: %+v", got)
	}
	m, _ = managed(t, file)
	m.Known(a)
	m.Synced()
	if got := m.Answer(a, true); got.Resized || !got.EverResized {
		t.Errorf("after another restart: %+v", got)
	}
	m.Release("a")
	raw, err := os.ReadFile(file)
	if err != nil || string(raw) != `{"version":1,"pods":{}}` {
		t.Errorf("left on disk: %s %v", raw, err)
	}
}

// After a restart pods become known in any order. A resize waits for the last of them.
func TestResizesWaitForAllPods(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	m, _ := managed(t, file)
	m.Synced()
	a, b := pod("a", 4), pod("b", 4)
	m.Answer(a, false)
	m.Answer(b, false)
	m.Answer(pod("gone", 1), false)
	b = resized(b, 6)
	first := m.Answer(b, true)
	if first.Pending == nil {
		t.Fatalf("a resize without room: %+v", first)
	}
	b.Status.Conditions = []v1.PodCondition{
		{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: first.Pending.Reason,
			Message: first.Pending.Message}}

	m, woken := managed(t, file)
	m.Known(b)
	if got := m.Answer(b, true); cpus(got.Pod) != 4 || got.Resized || got.Pending == nil ||
		*got.Pending != *first.Pending {
		t.Errorf("while other pods are not known: %+v, %+v", got, got.Pending)
	}
	m.Known(a)
	m.Synced()
	// The deleted pod holds nothing any more: its CPU is free, and a still has 4.
	if got := m.Answer(b, true); cpus(got.Pod) != 6 || got.Pending != nil || !got.Resized {
		t.Errorf("when all are known: %+v, %+v", got, got.Pending)
	}
	if a = resized(a, 5); m.Answer(a, true).Pending == nil {
		t.Error("more was given than the node has")
	}
	m.Release("b")
	if !slices.Equal(*woken, []types.UID{"a"}) {
		t.Errorf("woken: %v", *woken)
	}
}

func TestUnreadableState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	for _, content := range []string{"{", `{"version":2}`} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{File: file}); err == nil {
			t.Errorf("%s was taken", content)
		}
	}
}

// A pod of a kubelet that kept no allocations has the resources of its status.
func TestAdopted(t *testing.T) {
	m, _ := managed(t, filepath.Join(t.TempDir(), "state"))
	p := resized(pod("p", 2), 20)
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		{Name: "c", ContainerID: "x://1", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
			Resources: &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}}}
	m.Known(p)
	m.Synced()
	if got := m.Answer(p, true); cpus(got.Pod) != 2 || got.Pending == nil ||
		got.Pending.Reason != v1.PodReasonInfeasible {
		t.Errorf("%+v", got)
	}
	p = pod("whole", 1)
	p.UID, p.Spec.Resources = "whole",
		&v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("20")}}
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		{Name: "c", ContainerID: "x://1", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
			Resources: &v1.ResourceRequirements{Requests: p.Spec.Containers[0].Resources.Requests}}}
	p.Status.Resources = &v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3"),
			v1.ResourceMemory: resource.MustParse("1Gi")}}
	if got := m.Answer(p, true); got.Pod.Spec.Resources.Requests.Cpu().Value() != 3 ||
		len(got.Pod.Spec.Resources.Requests) != 1 || got.Pending == nil ||
		p.Spec.Resources.Requests.Cpu().Value() != 20 {
		t.Errorf("of a pod as a whole: %+v", got)
	}
}

// In every order of events, the pods never get more than the node has, and a resize that
// fits is allocated.
func TestNeverMoreThanThereIs(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m, _ := managed(t, filepath.Join(t.TempDir(), "state"))
		m.write = func(string, []byte, os.FileMode) error { return nil }
		m.Synced()
		pods := map[string]*v1.Pod{}
		for step := range 40 {
			uid := fmt.Sprint("p", rng.IntN(6))
			p := pods[uid]
			switch {
			case p == nil:
				p = pod(uid, 1+rng.IntN(5))
				if a := m.Answer(p, false); a.Refused == nil {
					pods[uid] = p
				}
			case rng.IntN(4) == 0:
				m.Release(p.UID)
				delete(pods, uid)
			default:
				pods[uid] = resized(p, 1+rng.IntN(12))
				if rng.IntN(2) == 0 { // the status is of an earlier spec
					pods[uid].Status.Conditions = []v1.PodCondition{
						{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonInfeasible}}
					pods[uid].Status.AllocatedResources = m.Get(p).Spec.Containers[0].Resources.Requests
				}
				m.Answer(pods[uid], true)
				m.Shrunk(p.UID, p.Status)
			}
			var sum int64
			for _, p := range pods {
				sum += cpus(m.Get(p))
			}
			if sum > 10 {
				t.Fatalf("seed %d, step %d: %d CPUs are given", seed, step, sum)
			}
			for _, p := range pods {
				if has, want := cpus(m.Get(p)), cpus(p); want != has && want <= 10 && sum-has+want <= 10 {
					t.Fatalf("seed %d, step %d: pod %s has %d CPUs, wants %d, and %d are given", seed, step, p.Name,
						has, want, sum)
				}
			}
		}
	}
}

// A critical pod waits for the end of others, and is admitted then.
func TestCriticalPodsMakeRoom(t *testing.T) {
	m, woken := managed(t, filepath.Join(t.TempDir(), "state"))
	var ended []types.UID
	m.Preempt = func(uid types.UID) { ended = append(ended, uid) }
	m.Synced()
	m.Answer(pod("ordinary", 8), false)
	critical := pod("critical", 5)
	highest := int32(2000001000)
	critical.Spec.Priority = &highest
	if a := m.Answer(critical, false); !a.Waiting || !slices.Equal(ended, []types.UID{"ordinary"}) {
		t.Errorf("%+v, ended %v", a, ended)
	}
	m.Release("ordinary")
	if !slices.Equal(*woken, []types.UID{"critical"}) {
		t.Errorf("woken: %v", *woken)
	}
	if a := m.Answer(critical, false); a.Waiting || a.Refused != nil {
		t.Errorf("with room: %+v", a)
	}
}

// A pod that was deleted without a grace period is gone for the scheduler, which gives its place to
// another one at once, while its containers still end here. The other one waits, and
// is not refused.
func TestPodsWaitForThoseThatWereDeleted(t *testing.T) {
	m, woken := managed(t, filepath.Join(t.TempDir(), "state"))
	m.Synced()
	old, stays := pod("old", 8), pod("stays", 2)
	m.Answer(old, false)
	m.Answer(stays, false)
	if a := m.Answer(pod("early", 4), false); a.Refused == nil || a.Waiting {
		t.Errorf("before anything was deleted: %+v", a)
	}
	m.Deleted(old.UID)
	next, large := pod("next", 8), pod("large", 9)
	if a := m.Answer(next, false); a.Refused != nil || !a.Waiting {
		t.Errorf("while the old one ends: %+v", a)
	}
	if a := m.Answer(large, false); a.Refused == nil {
		t.Errorf("one that would not fit either way: %+v", a)
	}
	m.Release(old.UID)
	if !slices.Contains(*woken, next.UID) {
		t.Errorf("woken are %v, want %s", *woken, next.UID)
	}
	if a := m.Answer(next, false); a.Refused != nil || a.Waiting {
		t.Errorf("when the old one has ended: %+v", a)
	}
}

// TestNewerLabelsCount: the scheduler may know a label or a taint before this node does.
func TestNewerLabelsCount(t *testing.T) {
	m, _ := managed(t, filepath.Join(t.TempDir(), "state"))
	m.Synced()
	var newest *v1.Node
	m.Newest = func() *v1.Node { return newest }
	fast := pod("fast", 1)
	fast.Spec.NodeSelector = map[string]string{"disk": "fast"}
	if a := m.Answer(fast, false); a.Refused == nil || a.Refused.Reason != "NodeAffinity" {
		t.Errorf("when the API server cannot be asked: %+v", a)
	}
	newest = m.Node()
	if a := m.Answer(fast, false); a.Refused == nil || a.Refused.Reason != "NodeAffinity" {
		t.Errorf("without the label: %+v", a)
	}
	newest.Labels = map[string]string{"disk": "fast"}
	if a := m.Answer(fast, false); a.Refused != nil {
		t.Errorf("with the label: %+v", a.Refused)
	}
	if a := m.Answer(pod("large", 100), false); a.Refused == nil || a.Refused.Resource != v1.ResourceCPU {
		t.Errorf("a pod that is too large: %+v", a)
	}
}
