package admission

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	listers "k8s.io/client-go/listers/core/v1"
)

func TestNewNodes(t *testing.T) {
	notReady := corev1.Taint{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}
	evicting := corev1.Taint{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute}
	valued := corev1.Taint{Key: "node.kubernetes.io/not-ready", Value: "x", Effect: corev1.TaintEffectNoSchedule}
	for _, c := range []struct {
		name        string
		has         []corev1.Taint
		subresource string
		want        []corev1.Taint
	}{
		{"none", nil, "", []corev1.Taint{notReady}},
		{"it", []corev1.Taint{notReady}, "", []corev1.Taint{notReady}},
		{"it, with a value", []corev1.Taint{valued}, "", []corev1.Taint{valued}},
		{"another effect", []corev1.Taint{evicting}, "", []corev1.Taint{evicting, notReady}},
		{"status", nil, "status", nil},
	} {
		node := &corev1.Node{Spec: corev1.NodeSpec{Taints: c.has}}
		if err := NewNewNodes().Admit(t.Context(),
			request{obj: node, resource: "nodes", subresource: c.subresource}.attributes(), nil); err != nil ||
			!slices.Equal(node.Spec.Taints, c.want) {
			t.Errorf("%s: %v, %v", c.name, err, node.Spec.Taints)
		}
	}
}

func TestPodTopology(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n",
			Labels: map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r",
				corev1.LabelHostname: "n"}}}
	bare := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}
	step := NewPodTopology(listers.NewNodeLister(indexed(t, node, bare)))
	on := func(name string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Spec.NodeName, p.Labels = name, map[string]string{"a": "b", corev1.LabelTopologyZone: "mine"}
		})
	}
	to := func(kind, name string) *corev1.Binding {
		return &corev1.Binding{Target: corev1.ObjectReference{Kind: kind, Name: name}}
	}
	where := map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}
	own := map[string]string{"a": "b", corev1.LabelTopologyZone: "mine"}
	for _, c := range []struct {
		name        string
		obj         runtime.Object
		subresource string
		want        map[string]string
	}{
		{"a binding", to("Node", "n"), "binding", where},
		{"a binding to something else", to("Machine", "n"), "binding", nil},
		{"a binding to a node without a zone", to("Node", "bare"), "binding", nil},
		{"a binding to a node that is not there", to("Node", "gone"), "binding", nil},
		{"a pod with a node", on("n"), "",
			map[string]string{"a": "b", corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}},
		{"a pod without", on(""), "", own},
		{"the status of a pod", on("n"), "status", own},
	} {
		if err := step.Admit(t.Context(), request{obj: c.obj, subresource: c.subresource}.attributes(),
			nil); err != nil {
			t.Error(err)
		}
		if got := c.obj.(metav1.Object).GetLabels(); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// resized returns a pod on a node with some resources for the whole of it, in another generation.
func resized(node string, generation int64, pairs ...string) *corev1.Pod {
	return newPod(func(p *corev1.Pod) {
		p.Spec.NodeName, p.Generation = node, generation
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts(pairs...)}
	})
}

func TestNodeFeatures(t *testing.T) {
	able := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "able"},
		Status: corev1.NodeStatus{DeclaredFeatures: []string{"InPlacePodLevelResourcesVerticalScaling"}}}
	unable := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unable"}}
	step := NewNodeFeatures(listers.NewNodeLister(indexed(t, able, unable)), version.MustParse("1.37"))
	for _, c := range []struct {
		name        string
		node        string
		generation  int64
		subresource string
		cpu         string
		want        string
	}{
		{"can", "able", 2, "resize", "2", ""},
		{"cannot", "unable", 2, "resize", "2",
			`pod update requires features InPlacePodLevelResourcesVerticalScaling which are not available on node "unable"`},
		{"is gone", "gone", 2, "resize", "2", `node "gone" not found`},
		{"nothing is needed", "unable", 2, "resize", "1", ""},
		{"is not there yet", "", 2, "resize", "2", ""},
		{"no change of the spec", "unable", 1, "resize", "2", ""},
		{"its status", "unable", 2, "status", "2", ""},
	} {
		r := request{obj: resized(c.node, c.generation, "cpu", c.cpu), old: resized(c.node, 1, "cpu", "1"),
			subresource: c.subresource, op: admission.Update}
		err := step.Validate(t.Context(), r.attributes(), nil)
		if c.want == "" && err != nil ||
			c.want != "" && (!apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestPodResize(t *testing.T) {
	node := func(name, system string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: system}},
			Status:     corev1.NodeStatus{Allocatable: amounts("cpu", "2", "memory", "1Gi")}}
	}
	step := NewPodResize(listers.NewNodeLister(indexed(t, node("n", "linux"), node("w", "windows"))))
	for _, c := range []struct {
		name        string
		pod         *corev1.Pod
		subresource string
		want        string
		cause       metav1.CauseType
	}{
		{"fits", resized("n", 2, "cpu", "2", "memory", "1Gi"), "resize", "", ""},
		{"too much", resized("n", 2, "cpu", "2100m", "memory", "2Gi"), "resize",
			"node didn't have enough allocatable resources: cpu, requested: 2100, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824", "NodeCapacity"},
		{"another system", resized("w", 2, "cpu", "1"), "resize",
			`pod resize is only supported on linux nodes, node "w" is "windows"`, "UnsupportedPlatform"},
		{"no node", resized("", 2, "cpu", "9"), "resize", "", ""},
		{"a node that is gone", resized("gone", 2, "cpu", "1"), "resize", `node "gone" not found`, ""},
		{"no change of the spec", resized("n", 1, "cpu", "9"), "resize", "", ""},
		{"no resize", resized("n", 2, "cpu", "9"), "", "", ""},
	} {
		r := request{obj: c.pod, old: resized("n", 1), subresource: c.subresource, op: admission.Update}
		err := step.Validate(t.Context(), r.attributes(), nil)
		if c.want == "" && err != nil ||
			c.want != "" && (!apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if c.cause != "" && !apierrors.HasStatusCause(err, c.cause) {
			t.Errorf("%s: without the cause: %v", c.name, err)
		}
	}
}
