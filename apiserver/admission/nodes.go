package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	resourcehelper "k8s.io/component-helpers/resource"
)

// NewNodes keeps pods from a new node until it is ready. The node controller takes the taint off.
type NewNodes struct{ *admission.Handler }

// PodTopology copies the zone and the region of a node to the pods that are put on it.
type PodTopology struct {
	*admission.Handler
	nodes listers.NodeLister
}

// NodeFeatures refuses changes of a pod that its node does not know how to make.
type NodeFeatures struct {
	*admission.Handler
	nodes   listers.NodeLister
	version *version.Version
}

// PodResize refuses to resize a pod beyond the resources of its node.
type PodResize struct {
	*admission.Handler
	nodes listers.NodeLister
}

var (
	_ admission.MutationInterface   = (*NewNodes)(nil)
	_ admission.MutationInterface   = (*PodTopology)(nil)
	_ admission.ValidationInterface = (*NodeFeatures)(nil)
	_ admission.ValidationInterface = (*PodResize)(nil)
)

// NewNewNodes returns the step.
func NewNewNodes() *NewNodes { return &NewNodes{admission.NewHandler(admission.Create)} }

// NewPodTopology returns the step.
func NewPodTopology(nodes listers.NodeLister) *PodTopology {
	return &PodTopology{admission.NewHandler(admission.Create), nodes}
}

// NewNodeFeatures returns the step. v is the version of Kubernetes whose features are
// required. declare.
func NewNodeFeatures(nodes listers.NodeLister, v *version.Version) *NodeFeatures {
	return &NodeFeatures{admission.NewHandler(admission.Update), nodes, v}
}

// NewPodResize returns the step.
func NewPodResize(nodes listers.NodeLister) *PodResize {
	return &PodResize{admission.NewHandler(admission.Update), nodes}
}

// Admit implements admission.MutationInterface.
func (n *NewNodes) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := a.GetObject().(*corev1.Node)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].MatchTaint(&notReady) {
			return nil
		}
	}
	node.Spec.Taints = append(node.Spec.Taints, notReady)
	return nil
}

// Admit implements admission.MutationInterface. A binding hands its labels on to the pod.
func (p *PodTopology) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") {
		return nil
	}
	var node string
	var to *metav1.ObjectMeta
	switch obj := a.GetObject().(type) {
	case *corev1.Pod:
		if a.GetSubresource() == "" {
			node, to = obj.Spec.NodeName, &obj.ObjectMeta
		}
	case *corev1.Binding:
		if obj.Target.Kind == "Node" && a.GetSubresource() == "binding" {
			node, to = obj.Target.Name, &obj.ObjectMeta
		}
	}
	if node == "" {
		return nil
	}
	n, err := p.nodes.Get(node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := n.Labels[name]; ok {
			if to.Labels == nil {
				to.Labels = map[string]string{}
			}
			maps.Copy(to.Labels, map[string]string{name: value})
		}
	}
	return nil
}

// placed returns a pod whose spec an update changes, before and after, if it has a node.
func placed(a admission.Attributes, subresources ...string) (pod, old *corev1.Pod) {
	right := false
	for _, s := range subresources {
		right = right || a.GetSubresource() == s
	}
	if !right || a.GetResource().GroupResource() != corev1.Resource("pods") {
		return nil, nil
	}
	pod, _ = a.GetObject().(*corev1.Pod)
	old, _ = a.GetOldObject().(*corev1.Pod)
	if pod == nil || old == nil || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil, nil
	}
	return pod, old
}

func nodeOf(a admission.Attributes, nodes listers.NodeLister, pod *corev1.Pod) (*corev1.Node, error) {
	node, err := nodes.Get(pod.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		return nil, admission.NewForbidden(a, fmt.Errorf("node %q not found", pod.Spec.NodeName))
	case err != nil:
		return nil, admission.NewForbidden(a, fmt.Errorf("failed to get node %q: %w", pod.Spec.NodeName, err))
	}
	return node, nil
}

// Validate implements admission.ValidationInterface.
func (n *NodeFeatures) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, old := placed(a, "", "resize")
	if pod == nil {
		return nil
	}
	features := nodedeclaredfeatures.DefaultFramework
	needed, err := features.InferForPodUpdate(
		&nodedeclaredfeatures.PodInfo{Spec: &old.Spec, Status: &old.Status},
		&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, n.version)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("failed to infer pod capability requirements: %w", err))
	}
	if needed.IsEmpty() {
		return nil
	}
	node, err := nodeOf(a, n.nodes, pod)
	if err != nil {
		return err
	}
	match, err := features.MatchNode(needed, node)
	if err != nil {
		return admission.NewForbidden(a,
			fmt.Errorf("failed to match pod requirements against node %q: %w", node.Name, err))
	}
	if !match.IsMatch {
		return admission.NewForbidden(a,
			fmt.Errorf("pod update requires features %s which are not available on node %q",
				strings.Join(match.UnsatisfiedRequirements, ", "), node.Name))
	}
	return nil
}

// Reasons that clients find among the causes of a refused resize.
const (
	reasonNodeCapacity        metav1.CauseType = "NodeCapacity"
	reasonUnsupportedPlatform metav1.CauseType = "UnsupportedPlatform"
)

// Validate implements admission.ValidationInterface.
func (p *PodResize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, _ := placed(a, "resize")
	if pod == nil {
		return nil
	}
	node, err := nodeOf(a, p.nodes, pod)
	if err != nil {
		return err
	}
	if system, ok := node.Labels[corev1.LabelOSStable]; ok && system != string(corev1.Linux) {
		return resizeRefused(a, reasonUnsupportedPlatform,
			fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, system))
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var lacks []string
	if cpu, has := requests.Cpu(), node.Status.Allocatable.Cpu(); cpu.Cmp(*has) > 0 {
		lacks = append(lacks, fmt.Sprintf("cpu, requested: %d, allocatable: %d", cpu.MilliValue(), has.MilliValue()))
	}
	if memory, has := requests.Memory(), node.Status.Allocatable.Memory(); memory.Cmp(*has) > 0 {
		lacks = append(lacks, fmt.Sprintf("memory, requested: %d, allocatable: %d", memory.Value(), has.Value()))
	}
	if len(lacks) > 0 {
		return resizeRefused(a, reasonNodeCapacity,
			fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(lacks, "; ")))
	}
	return nil
}

func resizeRefused(a admission.Attributes, reason metav1.CauseType, err error) error {
	refusal := admission.NewForbidden(a, err)
	var status *apierrors.StatusError
	if errors.As(refusal, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: reason})
	}
	return refusal
}
