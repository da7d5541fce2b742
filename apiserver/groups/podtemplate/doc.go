// Package podtemplate defaults, validates and describes pod specs: those of pods and those that
// workloads carry as templates, which must obey the same rules.
//
// It owns the rules of corev1.PodSpec and nothing around it. The rules of a controller for its
// template (a restart policy, a selector) belong to the controller's kind, and the rules for
// changes after creation to the pod. Its functions are pure. Defaulting is idempotent. Package warn
// finds probable mistakes in specs that are valid.
//
// Fields that belong to features this server does not offer are refused with a Forbidden error
// rather than dropped, so that the client learns that it does not get them.
package podtemplate
