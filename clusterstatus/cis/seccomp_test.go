package cis

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// TestUnconfinedPods: a pod without a profile is for a person, whatever the default is.
func TestUnconfinedPods(t *testing.T) {
	of := func(kind corev1.SeccompProfileType) *corev1.SecurityContext {
		return &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: kind}}
	}
	confined := &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec)
		want   Status
	}{
		"the pod": {func(p *corev1.PodSpec) { p.SecurityContext = unconfinedContext() }, Person},
		"a container": {
			func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = of(corev1.SeccompProfileTypeUnconfined) },
			Person},
		"one in a good pod": {func(p *corev1.PodSpec) {
			p.SecurityContext, p.Containers[0].SecurityContext = confined, of(corev1.SeccompProfileTypeUnconfined)
		}, Person},
		"an init container": {func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{SecurityContext: of(corev1.SeccompProfileTypeUnconfined)}}
		}, Person},
		"a privileged one": {func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		}, Person},
		"a good one": {func(p *corev1.PodSpec) { p.SecurityContext = confined }, Pass},
		"none":       {func(*corev1.PodSpec) {}, Pass},
		"its containers all": {func(p *corev1.PodSpec) {
			p.SecurityContext, p.Containers[0].SecurityContext = unconfinedContext(),
				of(corev1.SeccompProfileTypeRuntimeDefault)
		}, Pass},
		"one for debugging": {func(p *corev1.PodSpec) {
			p.EphemeralContainers = []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
					SecurityContext: of(corev1.SeccompProfileTypeUnconfined)}}}
		}, Person},
	} {
		e := hardened()
		pod(func(p *corev1.Pod) { c.change(&p.Spec) })(e)
		if r := judged(e, "5.6.2"); r.Status != c.want || c.want == Person && !strings.Contains(r.Reason, "default/p") {
			t.Errorf("%s: %+v, want %s", name, r, c.want)
		}
	}
	// Kubelets of others show no default, so the pods decide. They are never a failure.
	foreign := hardened()
	foreign.Nodes[0].Foreign = true
	pod(func(*corev1.Pod) {})(foreign)
	if r := judged(foreign, "5.6.2"); r.Status != Person || !strings.Contains(r.Reason, "default/p") {
		t.Errorf("without a default: %+v", r)
	}
	// A kubelet without the default fails for its own sake.
	e := hardened()
	kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.SeccompDefault = nil })(e)
	pod(func(*corev1.Pod) {})(e)
	if r := judged(e, "5.6.2"); r.Status != Fail || strings.Contains(r.Reason, "default/p") {
		t.Errorf("without the flag: %+v", r)
	}
	// Pods of the cluster itself need what they have.
	e = hardened()
	e.Objects.Pods = []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "driver"},
			Spec: corev1.PodSpec{SecurityContext: unconfinedContext()}}}
	if r := judged(e, "5.6.2"); r.Status != Pass {
		t.Errorf("the cluster's own: %+v", r)
	}
}

func unconfinedContext() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
}
