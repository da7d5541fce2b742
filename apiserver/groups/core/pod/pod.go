package pod

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/resource"
)

// Resource declares pods.
func Resource() resource.Resource {
	return &resource.Kind[corev1.Pod]{
		GroupVersion: corev1.SchemeGroupVersion,
		Name:         "pods",
		Singular:     "pod",
		ShortNames:   []string{"po"},
		Categories:   []string{"all"},
		List:         &corev1.PodList{},
		Default:      defaultPod,
		Prepare:      preparePod,
		Validate:     validatePod,
		Warnings:     podWarnings,
		Generation:   true,
		Status: &resource.Status[corev1.Pod]{Prepare: preparePodStatus, Validate: validatePodStatus,
			Warnings: podStatusWarnings},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Ready", "string", "How many containers are ready, of how many."),
			resource.Column("Status", "string", "State of the containers, summed up."),
			resource.Column("Restarts", "string", "How often containers were restarted, and when last."),
			resource.Age(),
			resource.WideColumn("IP", "string", "Address of the pod."),
			resource.WideColumn("Node", "string", "Node that the pod is assigned to."),
			resource.WideColumn("Nominated Node", "string", "Node on which other pods make room for the pod."),
			resource.WideColumn("Readiness Gates", "string", "How many of the extra conditions of readiness hold."),
		},
		Row:            podRow,
		Fields:         podFields,
		IndexFields:    []string{"spec.nodeName"},
		GracefulDelete: gracefulPodDelete,
		ReturnDeleted:  true,
	}
}

func defaultPod(p *corev1.Pod) {
	// In a pod, and not in a template, a grace period below zero is one second.
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil && *s < 0 {
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	podtemplate.DefaultPodSpec(&p.Spec)
	// podIP is the first of podIPs, for clients that know only one. Where they differ such a
	// client's value wins.
	if p.Status.PodIP != "" && (len(p.Status.PodIPs) == 0 || p.Status.PodIPs[0].IP != p.Status.PodIP) {
		p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	if p.Status.PodIP == "" && len(p.Status.PodIPs) > 0 {
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
}

func preparePod(ctx context.Context, p, old *corev1.Pod) {
	if old != nil {
		if p.Spec.Resources == nil { // the client does not know the field
			p.Spec.Resources = old.Spec.Resources.DeepCopy()
		}
		return
	}
	p.Status.Phase = corev1.PodPending
	defaultPodResources(p)
	p.Status.QOSClass = podtemplate.QOSClass(&p.Spec)
	mergeAffinityKeys(p)
	mergeSpreadKeys(p)
	// The warning is made here, since later the origin of the field is lost.
	for _, key := range podtemplate.SyncAppArmor(p) {
		warning.AddWarning(ctx, "",
			fmt.Sprintf(`%s: deprecated since v1.30; use the "appArmorProfile" field instead`,
				field.NewPath("metadata", "annotations").Key(key)))
	}
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type:    corev1.PodScheduled,
			Status:  corev1.ConditionFalse,
			Reason:  corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		})
	}
}

// preparePodStatus restores fields that a status update may not change or may omit.
func preparePodStatus(_ context.Context, p, old *corev1.Pod) {
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
	// The deprecated single form follows the list.
	if len(p.Status.PodIPs) > 0 && p.Status.PodIP == old.Status.PodIP {
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
}

// mergeAffinityKeys turns matchLabelKeys and mismatchLabelKeys of the affinity terms into parts of
// their selectors, with the values that the pod's own labels have.
func mergeAffinityKeys(p *corev1.Pod) {
	a := p.Spec.Affinity
	if a == nil {
		return
	}
	var terms []*corev1.PodAffinityTerm
	collect := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			terms = append(terms, &required[i])
		}
		for i := range preferred {
			terms = append(terms, &preferred[i].PodAffinityTerm)
		}
	}
	if a.PodAffinity != nil {
		collect(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a.PodAntiAffinity != nil {
		collect(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	for _, t := range terms {
		if t.LabelSelector == nil {
			continue
		}
		appendKeys(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn, p.Labels)
		appendKeys(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, p.Labels)
	}
}

// mergeSpreadKeys does the same for the constraints of spreading.
func mergeSpreadKeys(p *corev1.Pod) {
	for i := range p.Spec.TopologySpreadConstraints {
		if s := &p.Spec.TopologySpreadConstraints[i]; s.LabelSelector != nil {
			appendKeys(s.LabelSelector, s.MatchLabelKeys, metav1.LabelSelectorOpIn, p.Labels)
		}
	}
}

func appendKeys(s *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator, labels map[string]string) {
	for _, key := range keys {
		if value, ok := labels[key]; ok {
			s.MatchExpressions = append(s.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
		}
	}
}

func podFields(p *corev1.Pod) fields.Set {
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

// gracefulPodDelete leaves the end of a pod to the kubelet that runs it. A pod that was never
// assigned, or has ended, goes at once.
func gracefulPodDelete(_ context.Context, p *corev1.Pod, options *metav1.DeleteOptions) bool {
	var seconds int64
	switch {
	case p.Spec.NodeName == "", p.Status.Phase == corev1.PodFailed, p.Status.Phase == corev1.PodSucceeded:
		seconds = 0
	case options.GracePeriodSeconds != nil:
		seconds = *options.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *p.Spec.TerminationGracePeriodSeconds
	}
	if seconds < 0 {
		seconds = 1
	}
	options.GracePeriodSeconds = &seconds
	return true
}
