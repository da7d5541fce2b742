package cis

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// seccompOfPods is about pods of users. Pods are for a person; a kubelet without the default is
// not.
func seccompOfPods(e *Evidence) Verdict {
	byDefault := kubelets(seccompDefault)
	return both(func(e *Evidence) Verdict {
		v := byDefault(e)
		switch v.Status {
		case Pass:
			return pass("RuntimeDefault for pods without a profile, on all nodes")
		case Fail:
			return fail("pods without a profile are unconfined: %s", v.Reason)
		case Unknown:
			return v
		}
		return none("no kubelet that is known here has a default") // the pods decide
	}, objects(func(o *Objects) Verdict {
		defaulted := byDefault(e).Status == Pass
		v := ofPods(o, "each pod has a profile", func(p *corev1.Pod) bool { return unconfined(p, defaulted) })
		if v.Status == Person {
			v.Reason = "unconfined: " + v.Reason
		}
		return v
	}))(e)
}

// unconfined reports whether a container of a pod has no seccomp profile.
func unconfined(p *corev1.Pod, byDefault bool) bool {
	profile := func(own *corev1.SeccompProfile) bool {
		if own == nil {
			return !byDefault
		}
		return own.Type == corev1.SeccompProfileTypeUnconfined
	}
	var ofPod *corev1.SeccompProfile
	if c := p.Spec.SecurityContext; c != nil {
		ofPod = c.SeccompProfile
	}
	bad := func(c *corev1.SecurityContext) bool {
		switch {
		case c != nil && ptr.Deref(c.Privileged, false):
			return true // it runs without one
		case c != nil && c.SeccompProfile != nil:
			return profile(c.SeccompProfile)
		}
		return profile(ofPod)
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if bad(c.SecurityContext) {
			return true
		}
	}
	return slices.ContainsFunc(p.Spec.EphemeralContainers,
		func(c corev1.EphemeralContainer) bool { return bad(c.SecurityContext) })
}
