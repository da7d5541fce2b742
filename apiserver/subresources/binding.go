package subresources

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/barque/barque/apiserver/resource"
)

// Binding serves pods/binding: it puts a pod on a node, once.
type Binding struct {
	pods *resource.Storage
	now  func() metav1.Time
}

var (
	_ rest.NamedCreater                   = (*Binding)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*Binding)(nil)
)

// NewBinding returns the subresource of pods.
func NewBinding(pods *resource.Storage) *Binding { return &Binding{pods, metav1.Now} }

// New implements rest.Storage.
func (b *Binding) New() runtime.Object { return &corev1.Binding{} }

// Destroy implements rest.Storage; the store is its parent's.
func (b *Binding) Destroy() {}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate implements
// rest.SubresourceObjectMetaPreserver: the UID and version that a scheduler sends are
// preconditions.
func (b *Binding) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create implements rest.NamedCreater.
func (b *Binding) Create(
	ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	binding, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	if binding.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validateBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Binding").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, binding.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := b.assign(ctx, name, binding, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess, Code: 201}, nil
}

func validateBinding(b *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	if k := b.Target.Kind; k != "" && k != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), k, []string{"Node", "<empty>"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(field.NewPath("target", "name"), ""))
	}
	return errs
}

// assign writes the node and the condition in one step, unless the pod has a node, is going, or
// still waits for its gates.
func (b *Binding) assign(ctx context.Context, name string, binding *corev1.Binding, dryRun bool) error {
	key, err := b.pods.KeyFunc(ctx, name)
	if err != nil {
		return err
	}
	var preconditions *storage.Preconditions
	if binding.UID != "" || binding.ResourceVersion != "" {
		preconditions = &storage.Preconditions{}
		if binding.UID != "" {
			preconditions.UID = &binding.UID
		}
		if binding.ResourceVersion != "" {
			preconditions.ResourceVersion = &binding.ResourceVersion
		}
	}
	err = b.pods.Store.Storage.GuaranteedUpdate(ctx, key, &corev1.Pod{}, false, preconditions,
		storage.SimpleUpdate(func(current runtime.Object) (runtime.Object, error) {
			pod, ok := current.(*corev1.Pod)
			if !ok {
				return nil, fmt.Errorf("expected a Pod, got a %T", current)
			}
			return pod, b.put(pod, binding)
		}), dryRun, nil)
	pods := corev1.Resource("pods")
	switch {
	case storage.IsNotFound(err):
		return apierrors.NewNotFound(pods, name)
	case storage.IsConflict(err), storage.IsInvalidObj(err): // the latter of preconditions
		return apierrors.NewConflict(pods, name, err)
	}
	return err
}

func (b *Binding) put(pod *corev1.Pod, binding *corev1.Binding) error {
	var reason string
	switch {
	case pod.DeletionTimestamp != nil:
		reason = fmt.Sprintf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		reason = fmt.Sprintf("pod %s is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		reason = fmt.Sprintf("pod %s has non-empty .spec.schedulingGates", pod.Name)
	}
	if reason != "" {
		return apierrors.NewConflict(corev1.Resource("pods/binding"), pod.Name, fmt.Errorf("%s", reason))
	}
	pod.Spec.NodeName = binding.Target.Name
	if len(binding.Annotations) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		maps.Copy(pod.Annotations, binding.Annotations)
	}
	if len(binding.Labels) > 0 {
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		maps.Copy(pod.Labels, binding.Labels)
	}
	scheduled(pod, b.now())
	return nil
}

// scheduled sets the PodScheduled condition.
func scheduled(pod *corev1.Pod, now metav1.Time) {
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now,
		ObservedGeneration: pod.Generation,
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			if c.Status == corev1.ConditionTrue {
				condition.LastTransitionTime = c.LastTransitionTime
			}
			*c = condition
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, condition)
}

// Bindings serves bindings, the older form of pods/binding: the pod is named in the object.
type Bindings struct{ *Binding }

var (
	_ rest.Creater              = Bindings{}
	_ rest.Scoper               = Bindings{}
	_ rest.SingularNameProvider = Bindings{}
)

// NamespaceScoped implements rest.Scoper.
func (Bindings) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (Bindings) GetSingularName() string { return "binding" }

// Create implements rest.Creater.
func (b Bindings) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	binding, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	return b.Binding.Create(ctx, binding.Name, obj, validate, options)
}
