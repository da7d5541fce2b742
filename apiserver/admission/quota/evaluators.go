package quota

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// Evaluators returns the evaluators of kinds with a usage beside their count, and of kinds whose
// count has a name of its own. list finds the objects; it may be nil where nothing is summed up.
// devices may be nil where there are no DeviceClasses.
func Evaluators(list quotav1.ListerForResourceFunc, devices *Devices, now func() time.Time) []quotav1.Evaluator {
	all := []quotav1.Evaluator{newPods(list, now), newServices(list), newClaims(list),
		newDeviceClaims(list, devices, now)}
	for _, name := range []corev1.ResourceName{
		corev1.ResourceConfigMaps, corev1.ResourceQuotas, corev1.ResourceReplicationControllers, corev1.ResourceSecrets,
	} {
		gvr := corev1.SchemeGroupVersion.WithResource(string(name))
		all = append(all,
			generic.NewObjectCountEvaluator(gvr.GroupResource(), generic.ListResourceUsingListerFunc(list, gvr), name))
	}
	return all
}

// Ignored are the resources that no quota counts: those that are not stored, and events.
func Ignored() map[schema.GroupResource]struct{} {
	ignored := map[schema.GroupResource]struct{}{}
	for group, names := range map[string][]string{
		"":                      {"bindings", "componentstatuses", "events"},
		"events.k8s.io":         {"events"},
		"authentication.k8s.io": {"tokenreviews", "selfsubjectreviews"},
		"authorization.k8s.io": {"subjectaccessreviews", "selfsubjectaccessreviews", "localsubjectaccessreviews",
			"selfsubjectrulesreviews"},
	} {
		for _, name := range names {
			ignored[schema.GroupResource{Group: group, Resource: name}] = struct{}{}
		}
	}
	return ignored
}

// evaluator computes the usage of a kind.
type evaluator[T any] struct {
	resource schema.GroupVersionResource
	list     quotav1.ListerForResourceFunc
	// handles reports whether a request may change the usage.
	handles func(a admission.Attributes) bool
	// names returns the given names that objects of the kind may use.
	names func([]corev1.ResourceName) []corev1.ResourceName
	usage func(*T) corev1.ResourceList
	// scope reports whether an object is in a scope; nil means that none is in any.
	scope func(*T, corev1.ScopedResourceSelectorRequirement) (bool, error)
	// constraints returns an error if an object lacks a field that the quota requires; nil means
	// that no field is required.
	constraints func([]corev1.ResourceName, *T) error
}

var _ quotav1.Evaluator = (*evaluator[corev1.Pod])(nil)

func as[T any](obj runtime.Object) (*T, error) {
	o, ok := any(obj).(*T)
	if !ok {
		return nil, fmt.Errorf("expected a %T, got %T", o, obj)
	}
	return o, nil
}

// Constraints implements quotav1.Evaluator.
func (e *evaluator[T]) Constraints(required []corev1.ResourceName, item runtime.Object) error {
	if e.constraints == nil {
		return nil
	}
	obj, err := as[T](item)
	if err != nil {
		return err
	}
	return e.constraints(required, obj)
}

// GroupResource implements quotav1.Evaluator.
func (e *evaluator[T]) GroupResource() schema.GroupResource { return e.resource.GroupResource() }

// Handles implements quotav1.Evaluator.
func (e *evaluator[T]) Handles(a admission.Attributes) bool { return e.handles(a) }

// Matches implements quotav1.Evaluator.
func (e *evaluator[T]) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	return generic.Matches(q, item, e.MatchingResources, e.inScope)
}

// MatchingResources implements quotav1.Evaluator.
func (e *evaluator[T]) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	return e.names(names)
}

// MatchingScopes implements quotav1.Evaluator.
func (e *evaluator[T]) MatchingScopes(
	item runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement,
) ([]corev1.ScopedResourceSelectorRequirement, error) {
	matching := []corev1.ScopedResourceSelectorRequirement{}
	for _, s := range scopes {
		in, err := e.inScope(s, item)
		if err != nil {
			return nil, fmt.Errorf("error on matching scope %v: %w", s, err)
		}
		if in {
			matching = append(matching, s)
		}
	}
	return matching, nil
}

// UncoveredQuotaScopes implements quotav1.Evaluator.
func (e *evaluator[T]) UncoveredQuotaScopes(
	limited, matched []corev1.ScopedResourceSelectorRequirement,
) ([]corev1.ScopedResourceSelectorRequirement, error) {
	covered := map[corev1.ResourceQuotaScope]bool{}
	for _, s := range matched {
		covered[s.ScopeName] = true
	}
	uncovered := []corev1.ScopedResourceSelectorRequirement{}
	for _, s := range limited {
		if e.scope != nil && !covered[s.ScopeName] {
			uncovered = append(uncovered, s)
		}
	}
	return uncovered, nil
}

// Usage implements quotav1.Evaluator.
func (e *evaluator[T]) Usage(item runtime.Object) (corev1.ResourceList, error) {
	obj, err := as[T](item)
	if err != nil {
		return corev1.ResourceList{}, err
	}
	return e.usage(obj), nil
}

// UsageStats implements quotav1.Evaluator.
func (e *evaluator[T]) UsageStats(options quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return generic.CalculateUsageStats(options, generic.ListResourceUsingListerFunc(e.list, e.resource), e.inScope,
		e.Usage)
}

func (e *evaluator[T]) inScope(s corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
	if e.scope == nil {
		return false, nil
	}
	obj, err := as[T](item)
	if err != nil {
		return false, err
	}
	return e.scope(obj, s)
}

// anyOf reports whether a scope selects one of an object's names. An object without a name matches
// a selector that needs no name.
func anyOf(s corev1.ScopedResourceSelectorRequirement, names ...string) (bool, error) {
	if s.Operator == corev1.ScopeSelectorOpExists {
		return len(names) > 0, nil
	}
	operator, ok := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}[s.Operator]
	if !ok {
		return false,
			fmt.Errorf("failed to parse and convert selector: %q is not a valid scope selector operator", s.Operator)
	}
	requirement, err := labels.NewRequirement(string(s.ScopeName), operator, s.Values)
	if err != nil {
		return false, fmt.Errorf("failed to parse and convert selector: %w", err)
	}
	if len(names) == 0 {
		return requirement.Matches(labels.Set{}), nil
	}
	for _, name := range names {
		if requirement.Matches(labels.Set{string(s.ScopeName): name}) {
			return true, nil
		}
	}
	return false, nil
}

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

func countName(r schema.GroupVersionResource) corev1.ResourceName {
	return generic.ObjectCountQuotaResourceNameFor(r.GroupResource())
}
