package resourcemetrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corelisters "k8s.io/client-go/listers/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/barque/barque/apiserver/resource"
)

// Resources declares the resources of metrics.k8s.io. Metrics have the labels of their nodes
// and pods.
func Resources(c *Collector, nodes corelisters.NodeLister, pods corelisters.PodLister) []resource.Resource {
	gv := metricsv1beta1.SchemeGroupVersion
	return []resource.Resource{
		&resource.Computed{
			GroupVersion: gv, Name: "nodes",
			Types: []runtime.Object{&metricsv1beta1.NodeMetrics{}, &metricsv1beta1.NodeMetricsList{}},
			Storage: func() (rest.Storage, error) {
				return &nodeMetrics{TableConvertor: resource.Table(columns, nodeRow), collector: c, nodes: nodes}, nil
			},
		},
		&resource.Computed{
			GroupVersion: gv, Name: "pods",
			Types: []runtime.Object{&metricsv1beta1.PodMetrics{}, &metricsv1beta1.PodMetricsList{}},
			Storage: func() (rest.Storage, error) {
				return &podMetrics{TableConvertor: resource.Table(columns, podRow), collector: c, pods: pods}, nil
			},
		},
	}
}

// columns are the columns of metrics-server.
var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
	{Name: "cpu", Type: "string", Format: "quantity"},
	{Name: "memory", Type: "string", Format: "quantity"},
	{Name: "Window", Type: "string", Format: "duration"},
}

func row(name string, cpu, memory quantity.Quantity, window metav1.Duration) []any {
	return []any{name, cpu.String(), memory.String(), window.Duration.String()}
}

func nodeRow(n *metricsv1beta1.NodeMetrics, _ time.Time) []any {
	return row(n.Name, *n.Usage.Cpu(), *n.Usage.Memory(), n.Window)
}

func podRow(p *metricsv1beta1.PodMetrics, _ time.Time) []any {
	var cpu, memory quantity.Quantity
	for _, c := range p.Containers {
		cpu.Add(*c.Usage.Cpu())
		memory.Add(*c.Usage.Memory())
	}
	return row(p.Name, cpu, memory, p.Window)
}

// resources turns a use into quantities of the form in which metrics-server gives them.
func (u usage) resources() corev1.ResourceList {
	memory := quantity.NewQuantity(int64(u.memory), quantity.BinarySI)
	return corev1.ResourceList{
		corev1.ResourceCPU:    *quantity.NewScaledQuantity(int64(u.cpu), quantity.Nano),
		corev1.ResourceMemory: *memory,
	}
}

// selection has the selectors of a list.
type selection struct {
	labels labels.Selector
	fields fields.Selector
}

func selects(options *metainternalversion.ListOptions) selection {
	s := selection{labels.Everything(), fields.Everything()}
	if options != nil && options.LabelSelector != nil {
		s.labels = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		s.fields = options.FieldSelector
	}
	return s
}

func (s selection) has(o metav1.Object) bool {
	return s.fields.Matches(fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()})
}

// meta is the metadata of the metrics of an object.
func meta(of metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: of.GetName(), Namespace: of.GetNamespace(), Labels: maps.Clone(of.GetLabels()),
		CreationTimestamp: metav1.Now(),
	}
}

// nodeMetrics serves nodes.
type nodeMetrics struct {
	rest.TableConvertor
	collector *Collector
	nodes     corelisters.NodeLister
}

var (
	_ rest.Lister               = (*nodeMetrics)(nil)
	_ rest.Getter               = (*nodeMetrics)(nil)
	_ rest.Scoper               = (*nodeMetrics)(nil)
	_ rest.SingularNameProvider = (*nodeMetrics)(nil)
)

// New implements rest.Storage.
func (*nodeMetrics) New() runtime.Object { return &metricsv1beta1.NodeMetrics{} }

// NewList implements rest.Lister.
func (*nodeMetrics) NewList() runtime.Object { return &metricsv1beta1.NodeMetricsList{} }

// Destroy implements rest.Storage; the Collector belongs to the server.
func (*nodeMetrics) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*nodeMetrics) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider. Metrics have none: the name node is
// the Node's.
func (*nodeMetrics) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (m *nodeMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	node, err := m.nodes.Get(name)
	if err != nil {
		return nil, err
	}
	if err := m.collector.await(ctx); err != nil {
		return nil, err
	}
	of := m.of(node)
	if of == nil {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("nodemetrics"), name)
	}
	return of, nil
}

// List implements rest.Lister.
func (m *nodeMetrics) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := m.collector.await(ctx); err != nil {
		return nil, err
	}
	selected := selects(options)
	nodes, err := m.nodes.List(selected.labels)
	if err != nil {
		return nil, err
	}
	list := &metricsv1beta1.NodeMetricsList{Items: []metricsv1beta1.NodeMetrics{}}
	for _, node := range nodes {
		if !selected.has(node) {
			continue
		}
		if of := m.of(node); of != nil {
			list.Items = append(list.Items, *of)
		}
	}
	slices.SortFunc(list.Items, func(a, b metricsv1beta1.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// of returns the metrics of a node, nil when there are none.
func (m *nodeMetrics) of(node *corev1.Node) *metricsv1beta1.NodeMetrics {
	u := m.collector.nodeUsage(node.Name)
	if u == nil {
		return nil
	}
	return &metricsv1beta1.NodeMetrics{
		ObjectMeta: meta(node), Timestamp: metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window},
		Usage: u.resources(),
	}
}

// podMetrics serves pods.
type podMetrics struct {
	rest.TableConvertor
	collector *Collector
	pods      corelisters.PodLister
}

var (
	_ rest.Lister               = (*podMetrics)(nil)
	_ rest.Getter               = (*podMetrics)(nil)
	_ rest.Scoper               = (*podMetrics)(nil)
	_ rest.SingularNameProvider = (*podMetrics)(nil)
)

// New implements rest.Storage.
func (*podMetrics) New() runtime.Object { return &metricsv1beta1.PodMetrics{} }

// NewList implements rest.Lister.
func (*podMetrics) NewList() runtime.Object { return &metricsv1beta1.PodMetricsList{} }

// Destroy implements rest.Storage; the Collector belongs to the server.
func (*podMetrics) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*podMetrics) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider. Metrics have none: the name pod is
// the Pod's.
func (*podMetrics) GetSingularName() string { return "" }

// Get implements rest.Getter.
func (m *podMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	namespace := request.NamespaceValue(ctx)
	pod, err := m.pods.Pods(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if err := m.collector.await(ctx); err != nil {
		return nil, err
	}
	of := m.of(pod)
	if of == nil {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("podmetrics"), namespace+"/"+name)
	}
	return of, nil
}

// List implements rest.Lister.
func (m *podMetrics) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := m.collector.await(ctx); err != nil {
		return nil, err
	}
	selected := selects(options)
	pods, err := m.pods.Pods(request.NamespaceValue(ctx)).List(selected.labels)
	if err != nil {
		return nil, err
	}
	list := &metricsv1beta1.PodMetricsList{Items: []metricsv1beta1.PodMetrics{}}
	for _, pod := range pods {
		if !selected.has(pod) {
			continue
		}
		if of := m.of(pod); of != nil {
			list.Items = append(list.Items, *of)
		}
	}
	slices.SortFunc(list.Items, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// of returns the metrics of a pod that runs, nil when there are none. Their time is that of the
// container that was sampled first.
func (m *podMetrics) of(pod *corev1.Pod) *metricsv1beta1.PodMetrics {
	if pod.Status.Phase != corev1.PodRunning {
		return nil
	}
	containers := m.collector.podUsage(pod.Spec.NodeName,
		types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	if len(containers) == 0 {
		return nil
	}
	slices.SortFunc(containers, func(a, b containerUsage) int { return cmp.Compare(a.name, b.name) })
	out := &metricsv1beta1.PodMetrics{ObjectMeta: meta(pod),
		Containers: make([]metricsv1beta1.ContainerMetrics, 0, len(containers))}
	for i, c := range containers {
		if i == 0 || c.at.Before(out.Timestamp.Time) {
			out.Timestamp, out.Window = metav1.NewTime(c.at), metav1.Duration{Duration: c.window}
		}
		out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics{Name: c.name, Usage: c.resources()})
	}
	return out
}
