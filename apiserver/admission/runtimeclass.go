package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/node/v1"
)

// RuntimeClasses gives pods the overhead of their runtime class, and where it can run.
type RuntimeClasses struct {
	*admission.Handler
	classes listers.RuntimeClassLister
	client  kubernetes.Interface
}

var (
	_ admission.MutationInterface   = (*RuntimeClasses)(nil)
	_ admission.ValidationInterface = (*RuntimeClasses)(nil)
)

// NewRuntimeClasses returns the step.
func NewRuntimeClasses(classes listers.RuntimeClassLister, client kubernetes.Interface) *RuntimeClasses {
	return &RuntimeClasses{admission.NewHandler(admission.Create), classes, client}
}

// Admit implements admission.MutationInterface.
func (r *RuntimeClasses) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := PodOf(a)
	if pod == nil {
		return nil
	}
	class, err := r.classOf(ctx, a, pod)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return admission.NewForbidden(a, errOtherOverhead)
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	selector := maps.Clone(class.Scheduling.NodeSelector)
	for key, value := range pod.Spec.NodeSelector {
		if want, ok := selector[key]; ok && want != value {
			return admission.NewForbidden(a,
				fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s",
					key, want, key, value))
		}
		if selector == nil {
			selector = map[string]string{}
		}
		selector[key] = value
	}
	pod.Spec.NodeSelector = selector
	pod.Spec.Tolerations = MergeTolerations(pod.Spec.Tolerations, class.Scheduling.Tolerations)
	return nil
}

var (
	errOtherOverhead = fmt.Errorf("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
	errOwnOverhead   = fmt.Errorf("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
)

// Validate implements admission.ValidationInterface: later steps may have changed the overhead.
func (r *RuntimeClasses) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := PodOf(a)
	if pod == nil {
		return nil
	}
	class, err := r.classOf(ctx, a, pod)
	switch {
	case err != nil:
		return err
	case class == nil || class.Overhead == nil:
		if pod.Spec.Overhead != nil {
			return admission.NewForbidden(a, errOwnOverhead)
		}
	case !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead):
		return admission.NewForbidden(a, errOtherOverhead)
	}
	return nil
}

// classOf returns the class that the pod names, nil if it names none. The lister may be behind.
func (r *RuntimeClasses) classOf(
	ctx context.Context, a admission.Attributes, pod *corev1.Pod,
) (*nodev1.RuntimeClass, error) {
	if pod.Spec.RuntimeClassName == nil {
		return nil, nil
	}
	name := *pod.Spec.RuntimeClassName
	if class, err := r.classes.Get(name); err == nil {
		return class, nil
	}
	class, err := r.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, admission.NewForbidden(a, fmt.Errorf("pod rejected: RuntimeClass %q not found", name))
	}
	if err != nil {
		return nil, err
	}
	return class, nil
}

// MergeTolerations returns the tolerations of both lists, without those that another one includes.
// Of equal ones the first stays.
func MergeTolerations(first, second []corev1.Toleration) []corev1.Toleration {
	all := slices.Concat(first, second)
	var merged []corev1.Toleration
	for i := range all {
		redundant := slices.ContainsFunc(merged, func(t corev1.Toleration) bool { return Includes(&t, &all[i]) }) ||
			slices.ContainsFunc(all[i+1:], func(t corev1.Toleration) bool {
				return !apiequality.Semantic.DeepEqual(t, all[i]) && Includes(&t, &all[i])
			})
		if !redundant {
			merged = append(merged, all[i])
		}
	}
	return merged
}

// Includes reports whether one toleration tolerates all taints that the other tolerates.
func Includes(one, other *corev1.Toleration) bool {
	if apiequality.Semantic.DeepEqual(one, other) {
		return true
	}
	anyKey := one.Key == "" && one.Operator == corev1.TolerationOpExists
	if one.Key != other.Key && !anyKey || one.Effect != other.Effect && one.Effect != "" {
		return false
	}
	if s := one.TolerationSeconds; one.Effect == corev1.TaintEffectNoExecute && s != nil &&
		(other.TolerationSeconds == nil || *other.TolerationSeconds > *s) {
		return false
	}
	switch one.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		return other.Operator == corev1.TolerationOpEqual && one.Value == other.Value
	}
	return false
}
