// Package podtemplate defaults, validates and describes pod specs: those of pods and those that
// workloads carry as templates, which must obey the same rules.
//
// It owns the rules of corev1.PodSpec and nothing around it: what a controller demands of its
// template beyond them (a restart policy, a selector) is the controller's kind's, and what a pod
// may change after creation is the pod's. Its functions are pure. Defaulting is idempotent.
//
// Fields that belong to features this server does not offer are refused with a Forbidden error
// rather than dropped: a client that asks for them learns that it does not get them.
package podtemplate
