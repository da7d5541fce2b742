package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/barque/barque/apiserver/resource"
)

// Eviction serves pods/eviction: a delete that disruption budgets can refuse.
type Eviction struct {
	pods   *resource.Storage
	client kubernetes.Interface
	// budgets reports whether PodDisruptionBudgets are served.
	budgets bool
	now     func() metav1.Time
}

var (
	_ rest.NamedCreater             = (*Eviction)(nil)
	_ rest.GroupVersionKindProvider = (*Eviction)(nil)
	_ rest.GroupVersionAcceptor     = (*Eviction)(nil)
)

// NewEviction returns the subresource of pods. With budgets, PodDisruptionBudgets are honoured.
func NewEviction(pods *resource.Storage, client kubernetes.Interface, budgets bool) *Eviction {
	return &Eviction{pods, client, budgets, metav1.Now}
}

// New implements rest.Storage.
func (e *Eviction) New() runtime.Object { return &policyv1.Eviction{} }

// Destroy implements rest.Storage; the store is its parent's.
func (e *Eviction) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (e *Eviction) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion implements rest.GroupVersionAcceptor. As upstream's, it takes the version of
// clients before 1.22, too, although no budget of that version is served.
func (e *Eviction) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion || gv == policyv1beta1.SchemeGroupVersion
}

// AddOldEviction lets a scheme read evictions of policy/v1beta1.
func AddOldEviction(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(policyv1beta1.SchemeGroupVersion, &policyv1beta1.Eviction{})
	metav1.AddToGroupVersion(scheme, policyv1beta1.SchemeGroupVersion)
	return scheme.AddConversionFunc((*policyv1beta1.Eviction)(nil), (*policyv1.Eviction)(nil),
		func(in, out any, _ conversion.Scope) error {
			from, to := in.(*policyv1beta1.Eviction), out.(*policyv1.Eviction)
			to.ObjectMeta, to.DeleteOptions = from.ObjectMeta, from.DeleteOptions
			return nil
		})
}

// Create implements rest.NamedCreater.
func (e *Eviction) Create(
	ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	eviction, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if eviction.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if validate != nil {
		if err := validate(ctx, eviction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	deletion := &metav1.DeleteOptions{}
	if eviction.DeleteOptions != nil {
		deletion = eviction.DeleteOptions.DeepCopy()
	}
	if len(options.DryRun) > 0 {
		deletion.DryRun = options.DryRun
	}
	var again bool
	err := retry.OnError(conflicts, func(error) bool { return again }, func() (err error) {
		again, err = e.evict(ctx, name, deletion.DeepCopy())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess, Code: 201}, nil
}

// conflicts is how long an eviction tries to get ahead of other writers.
var conflicts = wait.Backoff{Steps: 20, Duration: 500 * time.Millisecond, Factor: 1, Jitter: 0.1}

// evict deletes the pod as it is now, if its budget allows that. again reports that nothing has
// been spent or deleted, because a pod that needs no budget has changed meanwhile: it may need
// one now.
func (e *Eviction) evict(ctx context.Context, name string, deletion *metav1.DeleteOptions) (again bool, err error) {
	got, err := e.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	pod := got.(*corev1.Pod)
	pinUID(deletion, pod)
	// A client's own precondition on the version stays.
	exact := false
	pin := func() {
		if deletion.Preconditions.ResourceVersion == nil {
			deletion.Preconditions.ResourceVersion, exact = &pod.ResourceVersion, true
		}
	}
	var freeOf string // the budget that it goes without spending
	switch {
	case pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil:
		pin() // it may become ready
	case e.budgets && needsBudget(pod):
		if freeOf, err = e.spend(ctx, pod, len(deletion.DryRun) > 0); err != nil {
			return false, err
		}
		if freeOf != "" {
			pin()
		}
	}
	if err = e.addCondition(ctx, pod, deletion); err == nil {
		_, _, err = e.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, deletion)
	}
	switch {
	case !apierrors.IsConflict(err) || !exact:
		return false, err
	case freeOf != "":
		return false, tooMany(freeOf)
	}
	return true, err
}

// pinUID lets a deletion concern this pod alone: the budget is spent on it, not on one that may
// have taken its name. A UID of the client stays.
func pinUID(deletion *metav1.DeleteOptions, pod *corev1.Pod) {
	if deletion.Preconditions == nil {
		deletion.Preconditions = &metav1.Preconditions{}
	}
	if p := deletion.Preconditions; p.UID == nil || *p.UID == "" {
		p.UID = &pod.UID
	}
}

// addCondition gives the pod the condition by which its controller distinguishes a disruption from
// a failure.
func (e *Eviction) addCondition(ctx context.Context, pod *corev1.Pod, deletion *metav1.DeleteOptions) error {
	p := deletion.Preconditions
	if len(deletion.DryRun) > 0 || (p.UID != nil && *p.UID != pod.UID) {
		return nil // the deletion reports the error
	}
	metadata := map[string]any{"uid": pod.UID}
	if p.ResourceVersion != nil {
		metadata["resourceVersion"] = *p.ResourceVersion
	}
	patch, err := json.Marshal(
		map[string]any{"metadata": metadata, "status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: e.now(),
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		}}}})
	if err != nil {
		return err
	}
	now, err := e.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	if p.ResourceVersion != nil {
		p.ResourceVersion = &now.ResourceVersion
	}
	return nil
}

// needsBudget reports whether the end of the pod is a disruption.
func needsBudget(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return false
	}
	return pod.DeletionTimestamp == nil
}

// spend takes one disruption from the pod's budget, or refuses with 429. It returns the name of a
// budget that the pod is free of because it does not serve.
func (e *Eviction) spend(ctx context.Context, pod *corev1.Pod, dryRun bool) (freeOf string, err error) {
	namespace := request.NamespaceValue(ctx)
	budgets := e.client.PolicyV1().PodDisruptionBudgets(namespace)
	list, err := budgets.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("reading disruption budgets: %w", err)
	}
	var matching []policyv1.PodDisruptionBudget
	for _, b := range list.Items {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			matching = append(matching, b)
		}
	}
	switch {
	case len(matching) == 0:
		return "", nil
	case len(matching) > 1:
		return "",
			apierrors.NewInternalError(
				fmt.Errorf(
					"this pod has more than one PodDisruptionBudget, which the eviction subresource does not support"))
	}
	if !ready(pod) &&
		(matching[0].Status.CurrentHealthy >= matching[0].Status.DesiredHealthy &&
			matching[0].Status.DesiredHealthy > 0 || alwaysAllowUnhealthy(&matching[0])) {
		return matching[0].Name, nil // taking a pod that does not serve costs the application nothing
	}
	return "", retry.RetryOnConflict(conflicts, func() error {
		budget, err := budgets.Get(ctx, matching[0].Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return e.take(ctx, budget, pod, dryRun)
	})
}

func (e *Eviction) take(ctx context.Context, b *policyv1.PodDisruptionBudget, pod *corev1.Pod, dryRun bool) error {
	const most = 2000 // evictions that the controller has not confirmed
	forbidden := func(why string) error {
		return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudget"), b.Name, errors.New(why))
	}
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return tooMany(b.Name)
	case b.Status.DisruptionsAllowed < 0:
		return forbidden("pdb disruptions allowed is negative")
	case len(b.Status.DisruptedPods) > most:
		return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
	}
	if b.Status.DisruptionsAllowed == 0 {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: policyv1.DisruptionBudgetCause, Message: whyNot(b)})
		return err
	}
	if dryRun {
		return nil
	}
	b.Status.DisruptionsAllowed--
	if b.Status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason:             policyv1.InsufficientPodsReason,
			ObservedGeneration: b.Status.ObservedGeneration, LastTransitionTime: e.now(),
		})
	}
	if b.Status.DisruptedPods == nil {
		b.Status.DisruptedPods = map[string]metav1.Time{}
	}
	b.Status.DisruptedPods[pod.Name] = e.now()
	_, err := e.client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, b, metav1.UpdateOptions{})
	return err
}

// whyNot returns the reason why a budget allows no disruption.
func whyNot(b *policyv1.PodDisruptionBudget) string {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason && c.Message != "" {
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s",
			b.Name, c.Message)
	}
	if b.Status.CurrentHealthy > b.Status.DesiredHealthy {
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	}
	return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name,
		b.Status.DesiredHealthy, b.Status.CurrentHealthy)
}

// tooMany refuses an eviction for now: the budget's status does not show yet whether it is allowed.
func tooMany(budget string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget)})
	return err
}

func alwaysAllowUnhealthy(b *policyv1.PodDisruptionBudget) bool {
	return b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
}

func ready(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
