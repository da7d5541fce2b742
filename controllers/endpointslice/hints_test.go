package endpointslice_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/endpointslice"
)

const controlPlane = "node-role.kubernetes.io/control-plane"

// aNode is ready. zone "" is none.
func aNode(name, zone, cpu string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func aServer(n *corev1.Node) { n.Labels[controlPlane] = "" }

func tainted(n *corev1.Node) {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule})
}

// hintedCluster has these nodes, and a Service with the annotation and a ready pod on each of on.
func hintedCluster(t *testing.T, nodes []*corev1.Node, on ...string) *controllertest.Cluster {
	t.Helper()
	svc := service()
	svc.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
	objects := []kruntime.Object{svc}
	for _, n := range nodes {
		objects = append(objects, n)
	}
	for i, node := range on {
		p := pod(i+1, true)
		p.Spec.NodeName = node
		objects = append(objects, p)
	}
	c := controllertest.New(t, objects...)
	ctrl, err := endpointslice.New(endpointslice.Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	return c
}

// hints counts the hints for each zone; "" is no hint. all is false until there is an endpoint of
// each of the pods.
func hints(t *testing.T, c *controllertest.Cluster, pods int) (zones map[string]int, all bool) {
	t.Helper()
	list, err := c.Client.DiscoveryV1().EndpointSlices("d").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	zones = map[string]int{}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			pods--
			if e.Hints == nil {
				zones[""]++
				continue
			}
			for _, z := range e.Hints.ForZones {
				zones[z.Name]++
			}
		}
	}
	return zones, pods == 0
}

// reasons are those of the Service's events, without repetitions.
func reasons(t *testing.T, c *controllertest.Cluster) []string {
	t.Helper()
	list, err := c.Client.CoreV1().Events("d").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestTopologyModeAuto: hints are in proportion to the CPUs of the zones, and there are none where
// that cannot be.
func TestTopologyModeAuto(t *testing.T) {
	const enabled, disabled = "TopologyAwareHintsEnabled", "TopologyAwareHintsDisabled"
	agents := []*corev1.Node{aNode("a", "z1", "2"), aNode("b", "z2", "2"), aNode("c", "z3", "2")}
	servers := []*corev1.Node{aNode("a", "z1", "2", aServer), aNode("b", "z2", "2", aServer),
		aNode("c", "z3", "2", aServer)}
	for name, c := range map[string]struct {
		nodes  []*corev1.Node
		on     []string
		want   map[string]int
		reason string
	}{
		"a pod in each zone": {agents, []string{"a", "b", "c"}, map[string]int{"z1": 1, "z2": 1, "z3": 1}, enabled},
		"a zone with twice the CPUs gets twice the endpoints": {
			[]*corev1.Node{aNode("a", "z1", "4"), aNode("b", "z2", "2")}, []string{"b", "b", "b", "a", "a", "a"},
			map[string]int{"z1": 4, "z2": 2}, enabled,
		},
		"servers that run pods": {servers, []string{"a", "b", "c"}, map[string]int{"z1": 1, "z2": 1, "z3": 1}, enabled},
		"three servers and two agents in three zones": {
			append(slices.Clone(servers), aNode("d", "z1", "2"), aNode("e", "z2", "2")),
			[]string{"a", "b", "c", "d", "e"},
			map[string]int{"z1": 2, "z2": 2, "z3": 1}, enabled,
		},
		"tainted servers are left out": {
			[]*corev1.Node{aNode("a", "z1", "8", aServer, tainted), aNode("b", "z1", "2"), aNode("c", "z2", "2")},
			[]string{"b", "c"},
			map[string]int{"z1": 1, "z2": 1}, enabled,
		},
		"fewer endpoints than zones": {agents, []string{"a", "b"}, map[string]int{"": 2}, disabled},
		"a node without a zone": {append(slices.Clone(agents), aNode("d", "", "2")), []string{"a", "b", "c"},
			map[string]int{"": 3}, disabled},
		"one zone": {[]*corev1.Node{aNode("a", "z1", "2"), aNode("b", "z1", "2")},
			[]string{"a", "b"}, map[string]int{"": 2}, disabled},
		"a zone would be overloaded": {agents, []string{"a", "b", "c", "a"}, map[string]int{"": 4}, disabled},
		"a node without CPUs to give": {append(slices.Clone(agents), aNode("d", "z1", "0")), []string{"a", "b", "c"},
			map[string]int{"": 3}, disabled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := hintedCluster(t, c.nodes, c.on...)
				var got map[string]int
				controllertest.Eventually(t, fmt.Sprintf("hints %v", c.want), func() bool {
					zones, all := hints(t, cluster, len(c.on))
					got = zones
					return all && maps.Equal(zones, c.want)
				})
				controllertest.Eventually(t, "event "+c.reason,
					func() bool { return slices.Contains(reasons(t, cluster), c.reason) })
				if t.Failed() {
					t.Log("hints", got, "events", reasons(t, cluster))
				}
			})
		})
	}
}

// TestHintsFollowNodes: a change of nodes that allows hints, or forbids them, needs no change of a
// pod.
func TestHintsFollowNodes(t *testing.T) {
	nodes := []*corev1.Node{aNode("a", "z1", "2", aServer), aNode("b", "z2", "2", aServer)}
	set := func(n *corev1.Node) func(context.Context, *controllertest.Cluster) error {
		return func(ctx context.Context, c *controllertest.Cluster) error {
			_, err := c.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
			return err
		}
	}
	both := map[string]int{"z1": 1, "z2": 1}
	for name, c := range map[string]struct {
		before []*corev1.Node
		first  map[string]int
		change func(context.Context, *controllertest.Cluster) error
		then   map[string]int
	}{
		"a node gets its zone": {[]*corev1.Node{nodes[0], aNode("b", "", "2", aServer)}, map[string]int{"": 2},
			set(nodes[1]), both},
		"a server is tainted": {nodes, both, set(aNode("b", "z2", "2", aServer, tainted)), map[string]int{"": 2}},
		"a taint goes": {[]*corev1.Node{nodes[0], aNode("b", "z2", "2", aServer, tainted)},
			map[string]int{"": 2}, set(nodes[1]), both},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := hintedCluster(t, c.before, "a", "b")
				expect := func(want map[string]int) {
					t.Helper()
					controllertest.Eventually(t, fmt.Sprintf("hints %v", want), func() bool {
						zones, all := hints(t, cluster, 2)
						return all && maps.Equal(zones, want)
					})
				}
				expect(c.first)
				if err := c.change(t.Context(), cluster); err != nil {
					t.Fatal(err)
				}
				expect(c.then)
			})
		})
	}
}

// TestZoneOfANodeReachesEndpoints: trafficDistribution goes by the zones in endpoints, too.
func TestZoneOfANodeReachesEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := service()
		near := corev1.ServiceTrafficDistributionPreferSameZone
		svc.Spec.TrafficDistribution = &near
		p := pod(1, true)
		p.Spec.NodeName = "a"
		c := controllertest.New(t, svc, p, aNode("a", "", "2"))
		ctrl, err := endpointslice.New(endpointslice.Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		expect := func(want map[string]int) {
			t.Helper()
			controllertest.Eventually(t, fmt.Sprintf("hints %v", want), func() bool {
				zones, all := hints(t, c, 1)
				return all && maps.Equal(zones, want)
			})
		}
		expect(map[string]int{"": 1})
		if _, err := c.Client.CoreV1().Nodes().Update(t.Context(), aNode("a", "z1", "2"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(map[string]int{"z1": 1})
	})
}
