package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/utils/ptr"
)

// Priorities resolves the priority class of pods.
type Priorities struct {
	*admission.Handler
	classes listers.PriorityClassLister
	client  kubernetes.Interface
}

var _ admission.MutationInterface = (*Priorities)(nil)

// NewPriorities returns the step.
func NewPriorities(classes listers.PriorityClassLister, client kubernetes.Interface) *Priorities {
	return &Priorities{admission.NewHandler(admission.Create), classes, client}
}

// Admit implements admission.MutationInterface.
func (p *Priorities) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := PodOf(a)
	if pod == nil {
		return nil
	}
	class, err := p.classOf(ctx, pod)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	value, policy := int32(0), ptr.To(corev1.PreemptLowerPriority)
	if class != nil {
		pod.Spec.PriorityClassName = class.Name
		value = class.Value
		if class.PreemptionPolicy != nil {
			policy = class.PreemptionPolicy
		}
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return admission.NewForbidden(a,
			fmt.Errorf(
				"the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *pod.Spec.Priority, value))
	}
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy != *policy {
		return admission.NewForbidden(a,
			fmt.Errorf(
				"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *pod.Spec.PreemptionPolicy, *policy))
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = ptr.To(value), ptr.To(*policy)
	return nil
}

// classOf returns the class that the pod names, or the default one, or nil if there is none.
func (p *Priorities) classOf(ctx context.Context, pod *corev1.Pod) (*schedulingv1.PriorityClass, error) {
	name := pod.Spec.PriorityClassName
	if name == "" {
		return p.defaultClass()
	}
	if class, err := p.classes.Get(name); err == nil {
		return class, nil
	}
	class, err := p.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no PriorityClass with name %s was found", name)
	}
	return class, err
}

// defaultClass picks the lowest of the classes marked as default, if there is more than one.
func (p *Priorities) defaultClass() (*schedulingv1.PriorityClass, error) {
	all, err := p.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var chosen *schedulingv1.PriorityClass
	for _, c := range all {
		if c.GlobalDefault && (chosen == nil || c.Value < chosen.Value) {
			chosen = c
		}
	}
	return chosen, nil
}

// SystemPriorityClasses are the classes that every cluster has.
func SystemPriorityClasses() []schedulingv1.PriorityClass {
	class := func(name string, value int32, description string) schedulingv1.PriorityClass {
		return schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value,
			Description: description}
	}
	const top = 2000000000
	return []schedulingv1.PriorityClass{
		class("system-cluster-critical", top,
			"Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
		class("system-node-critical", top+1000,
			"Used for system critical pods that must not be moved from their current node."),
	}
}
