package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

var pods = corev1.SchemeGroupVersion.WithResource("pods")

// demanded are the resources that every container must request where a quota sums them up.
var demanded = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

// ofPods are the resources with fixed names that pods use.
var ofPods = append([]corev1.ResourceName{
	countName(pods), corev1.ResourcePods,
	corev1.ResourceEphemeralStorage, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsEphemeralStorage,
}, demanded...)

func newPods(list quotav1.ListerForResourceFunc, now func() time.Time) *evaluator[corev1.Pod] {
	return &evaluator[corev1.Pod]{
		resource: pods, list: list, handles: handlesPod, names: podNames,
		usage: func(p *corev1.Pod) corev1.ResourceList { return podUsage(p, now()) },
		scope: podInScope, constraints: checkPod,
	}
}

// handlesPod reports whether a request makes a pod, or changes its resources, or whether it ends
// by itself.
func handlesPod(a admission.Attributes) bool {
	switch a.GetSubresource() {
	case "":
		if a.GetOperation() == admission.Create {
			return true
		}
		is, err := as[corev1.Pod](a.GetObject())
		was, err2 := as[corev1.Pod](a.GetOldObject())
		return a.GetOperation() == admission.Update && err == nil && err2 == nil && terminating(is) != terminating(was)
	case "resize":
		return a.GetOperation() == admission.Update
	}
	return false
}

func podNames(names []corev1.ResourceName) []corev1.ResourceName {
	var matching []corev1.ResourceName
	for _, name := range names {
		request, requested := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
		switch {
		case slices.Contains(ofPods, name), validation.IsHugePages(name):
		case requested && validation.IsHugePages(corev1.ResourceName(request)), isExtended(name):
		default:
			continue
		}
		matching = append(matching, name)
	}
	return matching
}

// isDevice reports whether the name stands for the devices of a class.
func isDevice(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix)
}

// podUsage returns the usage of a pod. A pod that has ended, or is overdue, counts as an
// object only.
func podUsage(p *corev1.Pod, now time.Time) corev1.ResourceList {
	usage := corev1.ResourceList{countName(pods): count(1)}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded || overdue(p, now) {
		return usage
	}
	requests, limits := held(p)
	return quotav1.Add(usage, compute(requests, limits))
}

// held returns the maximum of a pod's requested, allocated and actual resources. A resize that its
// node cannot fulfil does not count. Nodes of earlier versions do not report all that the pod had
// before; the maximum keeps it.
func held(p *corev1.Pod) (requests, limits corev1.ResourceList) {
	p = withoutFormerRefusal(p)
	options := resourcehelper.PodResourcesOptions{UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true}
	requests, limits = resourcehelper.PodRequests(p, options), resourcehelper.PodLimits(p, options)
	if p.Status.Resources == nil {
		spec := resourcehelper.PodResourcesOptions{}
		complete(requests, resourcehelper.PodRequests(p, spec))
		complete(limits, resourcehelper.PodLimits(p, spec))
	} else {
		containers := resourcehelper.PodResourcesOptions{UseStatusResources: true, SkipPodLevelResources: true}
		complete(limits, resourcehelper.PodLimits(p, containers))
	}
	return requests, limits
}

// withoutFormerRefusal returns the pod without its node's condition that a resize is infeasible, if
// that is about an earlier generation of the pod: the node has not judged the resize of this one.
// Otherwise one infeasible resize would make the next one free.
func withoutFormerRefusal(p *corev1.Pod) *corev1.Pod {
	former := func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible &&
			c.ObservedGeneration < p.Generation
	}
	if !slices.ContainsFunc(p.Status.Conditions, former) {
		return p
	}
	copied := *p
	copied.Status.Conditions = slices.DeleteFunc(slices.Clone(p.Status.Conditions), former)
	return &copied
}

// complete adds the entries that a list lacks.
func complete(list, from corev1.ResourceList) {
	for name, q := range from {
		if _, ok := list[name]; !ok {
			list[name] = q
		}
	}
}

// overdue reports whether the node of a pod has failed to end it in time.
func overdue(p *corev1.Pod, now time.Time) bool {
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil {
		return false
	}
	return now.After(p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second))
}

// compute names requests and limits as quotas do.
func compute(requests, limits corev1.ResourceList) corev1.ResourceList {
	usage := corev1.ResourceList{corev1.ResourcePods: count(1)}
	for name, q := range requests {
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
			validation.IsHugePages(name):
			usage[name] = q
			usage[corev1.DefaultResourceRequestsPrefix+name] = q
		case validation.IsExtendedResource(name), isDevice(name):
			usage[corev1.DefaultResourceRequestsPrefix+name] = q
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage} {
		if q, ok := limits[name]; ok {
			usage["limits."+name] = q
		}
	}
	return usage
}

// checkPod demands that all containers have requests or limits of CPU and memory, where a quota
// counts them and the pod as a whole has none. Upstream demands nothing of a pod that has any
// resource as a whole: with one millicore there, its memory would escape each quota.
func checkPod(required []corev1.ResourceName, p *corev1.Pod) error {
	var whole corev1.ResourceList
	if r := p.Spec.Resources; r != nil {
		whole = compute(r.Requests, r.Limits)
	}
	missing := map[corev1.ResourceName][]string{}
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			usage := compute(list[i].Resources.Requests, list[i].Resources.Limits)
			for _, name := range required {
				_, said := usage[name]
				_, ofPod := whole[name]
				if !said && !ofPod && slices.Contains(demanded, name) {
					missing[name] = append(missing[name], list[i].Name)
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var text []string
	for name, containers := range missing {
		slices.Sort(containers)
		text = append(text, fmt.Sprintf("%s for: %s", name, strings.Join(containers, ",")))
	}
	slices.Sort(text)
	return fmt.Errorf("must specify %s", strings.Join(text, "; "))
}

func podInScope(p *corev1.Pod, s corev1.ScopedResourceSelectorRequirement) (bool, error) {
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating(p), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating(p), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return podtemplate.QOSClass(&p.Spec) == corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return podtemplate.QOSClass(&p.Spec) != corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopePriorityClass:
		if p.Spec.PriorityClassName == "" {
			return anyOf(s)
		}
		return anyOf(s, p.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(p.Spec.Affinity), nil
	}
	return false, nil
}

// terminating reports whether a pod ends by itself after some time.
func terminating(p *corev1.Pod) bool {
	return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds >= 0
}

func crossesNamespaces(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	var weighted []corev1.WeightedPodAffinityTerm
	if near := a.PodAffinity; near != nil {
		terms = append(terms, near.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, near.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if apart := a.PodAntiAffinity; apart != nil {
		terms = append(terms, apart.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, apart.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range weighted {
		terms = append(terms, weighted[i].PodAffinityTerm)
	}
	return slices.ContainsFunc(terms,
		func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}
