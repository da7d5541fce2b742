package plugintest

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// List returns amounts of resources, from pairs of name and amount.
func List(pairs ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

// Node returns a node with some of each resource.
func Node(name string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{
			Allocatable: List("cpu", "4", "memory", "8Gi", "ephemeral-storage", "10Gi", "pods", "10", "example.com/gpu",
				"2")},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

// Labelled gives a node a label.
func Labelled(key, value string) func(*v1.Node) {
	return func(n *v1.Node) { n.Labels[key] = value }
}

// Pod returns a pod of one container.
func Pod(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Labels: map[string]string{}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "nginx"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// On binds a pod to a node.
func On(node string) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.NodeName = node } }

// App labels a pod with its app.
func App(name string) func(*v1.Pod) { return func(p *v1.Pod) { p.Labels["app"] = name } }

// Asks gives a pod requests, from pairs of name and amount.
func Asks(pairs ...string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests = List(pairs...) }
}
