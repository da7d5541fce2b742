package statefulset

import (
	"maps"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/pods"
)

// nameOf returns the name of the pod with an ordinal.
func nameOf(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

// ordinalOf reads the ordinal out of a pod's name, false when the name is not one of the set's.
func ordinalOf(set *appsv1.StatefulSet, pod interface{ GetName() string }) (int, bool) {
	digits, ok := strings.CutPrefix(pod.GetName(), set.Name+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	// Only names of nameOf: no sign, no leading zeros.
	return int(n), err == nil && n >= 0 && nameOf(set, int(n)) == pod.GetName()
}

// newPod makes the pod of an ordinal, of the current revision below the partition.
func (v *view) newPod(ordinal, place int) *corev1.Pod {
	of := v.update
	if s := v.set.Spec.UpdateStrategy; s.Type == appsv1.RollingUpdateStatefulSetStrategyType || s.Type == "" {
		below := partition(v.set)
		if s.RollingUpdate == nil {
			below = int(v.set.Status.CurrentReplicas)
		}
		if place < below {
			of = v.current
		}
	}
	pod := pods.FromTemplate(of.template, v.set, kind)
	pod.GenerateName, pod.Name = "", nameOf(v.set, ordinal)
	pod.Labels = maps.Clone(pod.Labels)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetRevisionLabel] = of.name
	identify(pod, ordinal)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, v.set.Spec.ServiceName
	var volumes []corev1.Volume
	claimed := map[string]bool{}
	for i := range v.set.Spec.VolumeClaimTemplates {
		t := &v.set.Spec.VolumeClaimTemplates[i]
		claimed[t.Name] = true
		volumes = append(volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(v.set, t, ordinal)}}})
	}
	for _, volume := range pod.Spec.Volumes {
		if !claimed[volume.Name] {
			volumes = append(volumes, volume)
		}
	}
	pod.Spec.Volumes = volumes
	return pod
}

// identify gives a pod the labels that Services and other controllers select it by.
func identify(pod *corev1.Pod, ordinal int) {
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

// fixIdentity restores a pod's identity labels.
func (v *view) fixIdentity(p *plan, pod *corev1.Pod) {
	if pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name {
		return
	}
	ordinal, _ := ordinalOf(v.set, pod)
	pod = pod.DeepCopy()
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	identify(pod, ordinal)
	p.relabel = append(p.relabel, pod)
}

// timeOf truncates a time to the precision of the API.
func timeOf(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
