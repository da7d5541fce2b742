package endpointslice

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// theNodes is the key of all nodes together. No Service has it.
var theNodes runtime.Key

// nodesEvery is how far apart the looks at all nodes are, each of which reads every one.
const nodesEvery = time.Second

// ofNode wakes the look at all nodes when the topology hints, which depend on the zones and sizes
// of nodes, may change. The queue makes one look of many changes: each reads every node. Endpoints
// carry the zone of their node, so another zone wakes the Services of the node's pods, too.
func (t *term) ofNode(old, now *corev1.Node) []runtime.Key {
	if old != nil && now != nil && sameForHints(old, now) {
		return nil
	}
	keys := []runtime.Key{theNodes}
	if old != nil && now != nil && zoneOf(old) != zoneOf(now) {
		keys = append(keys, t.servicesOn(now.Name)...)
	}
	return keys
}

// servicesOn returns the Services with pods on the node.
func (t *term) servicesOn(node string) []runtime.Key {
	there, err := pods.OnNode(t.pods, node)
	if err != nil {
		return nil // New made the index
	}
	var keys []runtime.Key
	for _, pod := range there {
		keys = append(keys, pods.ServicesOf(t.listServices, nil, pod)...)
	}
	return keys
}

// setNodes feeds the topology hints, and wakes the Services whose hints no longer fit, and those
// that are to have hints and have none: the nodes may allow them now.
func (t *term) setNodes() error {
	t.looked = time.Now()
	nodes, err := t.listNodes.List(labels.Everything())
	if err != nil {
		return err
	}
	services, err := t.listServices.List(labels.Everything())
	if err != nil {
		return err
	}
	for i, node := range nodes {
		nodes[i] = forHints(node)
	}
	t.topology.SetNodes(klog.Background(), nodes)
	for _, name := range t.topology.GetOverloadedServices() {
		namespace, name, _ := strings.Cut(name, "/")
		t.loop.Add(runtime.Key{Namespace: namespace, Name: name})
	}
	for _, service := range services {
		key := runtime.KeyOf(service)
		if wantsHints(service) && !t.topology.HasPopulatedHints(key.String()) {
			t.loop.Add(key)
		}
	}
	return nil
}

// wantsHints is true for a Service that asks for hints in proportion to the CPUs of zones.
func wantsHints(service *corev1.Service) bool {
	mode, old := service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !old {
		mode = service.Annotations[corev1.AnnotationTopologyMode]
	}
	return strings.EqualFold(mode, "Auto")
}

// controlPlane are the keys of labels, and of taints, that mark nodes of the control plane.
var controlPlane = []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// forHints returns the node as the library is to count it. The library leaves out nodes of the
// control plane: on most clusters they are tainted, and send no traffic of pods. Servers of Barque
// run pods as agents do, and count, unless they are tainted so.
func forHints(node *corev1.Node) *corev1.Node {
	if !labelled(node) || reserved(node) {
		return node
	}
	counted := *node
	counted.Labels = maps.Clone(node.Labels)
	for _, label := range controlPlane {
		delete(counted.Labels, label)
	}
	return &counted
}

func labelled(node *corev1.Node) bool {
	return slices.ContainsFunc(controlPlane, func(label string) bool {
		_, ok := node.Labels[label]
		return ok
	})
}

// reserved is true for a node from which a taint of the control plane keeps ordinary pods away.
func reserved(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return slices.Contains(controlPlane, taint.Key) && taint.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

func leftOut(node *corev1.Node) bool { return labelled(node) && reserved(node) }

func sameForHints(a, b *corev1.Node) bool {
	return zoneOf(a) == zoneOf(b) && leftOut(a) == leftOut(b) && ready(a) == ready(b) &&
		a.Status.Allocatable.Cpu().Equal(*b.Status.Allocatable.Cpu())
}

func zoneOf(node *corev1.Node) string { return node.Labels[corev1.LabelTopologyZone] }

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
