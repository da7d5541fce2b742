package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/barque/barque/scheduler/framework"
)

func node(name, zone string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: zone}},
		Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}},
	}
}

func podOn(name, node string, milliCPU int64) *framework.PodInfo {
	p, err := framework.NewPodInfo(&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{NodeName: node,
			Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU: *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
			}}}}},
	})
	if err != nil {
		panic(err)
	}
	return p
}

func newCache() (*Cache, *testclock.FakePassiveClock) {
	clock := testclock.NewFakePassiveClock(time.Unix(0, 0))
	return New(clock, time.Minute), clock
}

// used returns the CPU in use on a node as a snapshot shows it.
func used(t *testing.T, c *Cache, s *Snapshot, name string) int64 {
	t.Helper()
	c.Update(s)
	n, err := s.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return n.GetRequested().GetMilliCPU()
}

func TestAssumedPodLife(t *testing.T) {
	c, clock := newCache()
	s := NewSnapshot()
	c.SetNode(node("a", "z"))
	c.SetNode(node("b", "z"))
	assume := func(name, node string) {
		t.Helper()
		if err := c.Assume(podOn(name, node, 100)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, a, b int64) {
		t.Helper()
		if ua, ub := used(t, c, s, "a"), used(t, c, s, "b"); ua != a || ub != b {
			t.Errorf("%s: a uses %d and b %d, want %d and %d", what, ua, ub, a, b)
		}
	}

	assume("p", "a")
	check("assumed", 100, 0)
	if c.Assume(podOn("p", "b", 100)) == nil {
		t.Error("a pod was assumed twice")
	}
	c.AddPod(podOn("p", "b", 100)) // another writer was faster
	check("confirmed elsewhere", 0, 100)
	if c.Forget("p") {
		t.Error("a confirmed pod was forgotten")
	}
	c.RemovePod("p")
	check("removed", 0, 0)

	assume("q", "a")
	clock.SetTime(clock.Now().Add(time.Hour))
	if lost := c.Expire(); len(lost) > 0 {
		t.Error("a pod expired whose binding is under way")
	}
	c.FinishBinding("q")
	clock.SetTime(clock.Now().Add(2 * time.Minute))
	if lost := c.Expire(); len(lost) != 1 || lost[0].Name != "q" {
		t.Errorf("expired: %v, want q", lost)
	}
	check("expired", 0, 0)

	assume("r", "a")
	if !c.Forget("r") || c.Assumed() != 0 {
		t.Error("an assumed pod cannot be forgotten")
	}
	check("forgotten", 0, 0)
}

func TestPodsOutliveTheirNodesObject(t *testing.T) {
	c, _ := newCache()
	s := NewSnapshot()
	c.AddPod(podOn("early", "a", 100)) // before its node is seen
	c.SetNode(node("a", "z"))
	if got := used(t, c, s, "a"); got != 100 {
		t.Errorf("uses %d, want 100", got)
	}
	c.RemoveNode("a")
	if c.Update(s); s.Len() != 0 {
		t.Error("a removed node is in the snapshot")
	}
	c.SetNode(node("a", "z"))
	if got := used(t, c, s, "a"); got != 100 {
		t.Errorf("after it came back the node uses %d, want 100", got)
	}
	c.RemoveNode("a")
	c.RemovePod("early")
	if len(c.nodes) != 0 {
		t.Errorf("entries left: %v", c.nodes)
	}
}

func TestListAlternatesZones(t *testing.T) {
	c, _ := newCache()
	for _, n := range []string{"a1", "a2", "a3", "b1", "c1", "c2"} {
		c.SetNode(node(n, n[:1]))
	}
	s := NewSnapshot()
	c.Update(s)
	var got []string
	for _, n := range s.list {
		got = append(got, n.Node().Name)
	}
	if want := []string{"a1", "b1", "c1", "a2", "c2", "a3"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// An incrementally updated snapshot must equal a new one after any series of changes.
func TestIncrementalSnapshotEqualsFullOne(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c, _ := newCache()
		s := NewSnapshot()
		for range 200 {
			randomStep(c, rng)
			if rng.IntN(3) > 0 {
				continue
			}
			c.Update(s)
			full := NewSnapshot()
			c.Update(full)
			if a, b := describe(s), describe(full); a != b {
				t.Fatalf("seed %d: incremental\n%s\nfull\n%s", seed, a, b)
			}
		}
	}
}

func randomStep(c *Cache, rng *rand.Rand) {
	n, p := fmt.Sprintf("n%d", rng.IntN(6)), fmt.Sprintf("p%d", rng.IntN(20))
	switch rng.IntN(6) {
	case 0:
		c.SetNode(node(n, fmt.Sprint(rng.IntN(2))))
	case 1:
		if rng.IntN(3) == 0 {
			c.RemoveNode(n)
		}
	case 2:
		c.AddPod(podOn(p, n, 100))
	case 3:
		c.RemovePod(types.UID(p))
	case 4:
		_ = c.Assume(podOn(p, n, 100)) // refused when p is there
	case 5:
		c.Forget(types.UID(p))
	}
}

func describe(s *Snapshot) string {
	out := ""
	for _, n := range s.list {
		var pods []string
		for _, p := range n.GetPods() {
			pods = append(pods, p.GetPod().Name)
		}
		slices.Sort(pods)
		out += fmt.Sprintf("%s/%s %v %d\n", n.Node().Name, zoneOf(n.Node()), pods, n.GetRequested().GetMilliCPU())
	}
	return out
}
