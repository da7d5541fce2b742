package cis

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/ptr"
)

// Reviews are asked for these users, besides BroadGroups.
const (
	Stranger = "barque:cis:stranger"
	RBACUser = "system:kube-scheduler"
	ANode    = "system:nodes"
)

// Pods of dry runs. ProbePlain breaks no rule; each other one breaks one.
const (
	ProbePlain        = "plain"
	ProbePrivileged   = "privileged"
	ProbeHostPID      = "host-pid"
	ProbeHostIPC      = "host-ipc"
	ProbeHostNetwork  = "host-network"
	ProbeEscalation   = "escalation"
	ProbeRoot         = "root"
	ProbeNetRaw       = "net-raw"
	ProbeCapabilities = "capabilities"
	ProbeHostProcess  = "host-process"
	ProbeHostPath     = "host-path"
	ProbeHostPort     = "host-port"
)

// system reports whether a namespace is the cluster's own.
func system(namespace string) bool {
	return namespace == "kube-system" || namespace == "kube-public" || namespace == "kube-node-lease"
}

// OfUsers are the namespaces whose pods are held to policies: all but the cluster's own and those
// that are being deleted.
func OfUsers(all []corev1.Namespace) []string {
	var names []string
	for i := range all {
		if !system(all[i].Name) && all[i].DeletionTimestamp == nil {
			names = append(names, all[i].Name)
		}
	}
	return names
}

func strangersRights(a *Answers) Verdict {
	switch v, _ := a.review(Stranger); {
	case v == nil:
		return pass("a made-up user may not read Secrets")
	case v.Status == Fail:
		return fail("a made-up user may read Secrets: %s", v.Reason)
	default:
		return *v
	}
}

func nodesRights(e *Evidence) Verdict {
	return answers(func(a *Answers) Verdict {
		is, asked := a.May[ANode]
		switch {
		case !asked && a.Problem == "" && len(e.Nodes) == 0:
			return none("there is no node")
		case !asked:
			return a.missing("a review for a node")
		case !is.Allowed:
			return fail("a node may not read itself: %s", is.Reason+is.Problem)
		}
		return pass("a node may read itself, which no role says")
	})(e)
}

func rbacRights(a *Answers) Verdict {
	is, asked := a.May[RBACUser]
	switch {
	case !asked:
		return a.missing("a review for " + RBACUser)
	case !is.Allowed || !strings.HasPrefix(is.Reason, "RBAC:"):
		return fail("%s has no rights by RBAC: %s", RBACUser, is.Reason+is.Problem)
	}
	return pass("the rights of %s are by RBAC", RBACUser)
}

func rootCA(o *Objects) Verdict {
	if !strings.Contains(o.RootCA, "BEGIN CERTIFICATE") {
		return fail("there is no CA in it")
	}
	return pass("it has the CA")
}

func bootstrapTokens(o *Objects) Verdict {
	if len(o.BootstrapTokens) > 0 {
		return person("%s", some(o.BootstrapTokens))
	}
	return pass("there is none")
}

// refuses judges the pods of a dry run in all namespaces of users, at each server.
func refuses(pod string) func(*Evidence) Verdict {
	return func(e *Evidence) Verdict {
		if e.Objects == nil {
			return unknown("the API was not asked")
		}
		namespaces := OfUsers(e.Objects.Namespaces)
		if len(namespaces) == 0 {
			return unknown("no namespace of users was seen")
		}
		return answers(func(a *Answers) Verdict {
			var admitted, doubtful []string
			for _, namespace := range namespaces {
				probe, asked := a.Probes[namespace][pod]
				plain := a.Probes[namespace][ProbePlain]
				switch {
				case probe.Admitted:
					admitted = append(admitted, namespace)
				case !asked:
					doubtful = append(doubtful, a.missing(namespace).Reason)
				case !plain.Admitted && !strings.Contains(probe.Refused, "PodSecurity"):
					// Something else refuses every pod, such as a quota.
					doubtful = append(doubtful, namespace+": "+probe.Refused)
				}
			}
			switch {
			case admitted != nil:
				return fail("admitted in %s", some(admitted))
			case doubtful != nil:
				return unknown("%s", some(doubtful))
			}
			return pass("refused in each of %d namespaces", len(namespaces))
		})(e)
	}
}

func defaultAccounts(o *Objects) Verdict {
	var found []string
	each := func(name, namespace string, subjects []rbacv1.Subject) {
		for _, s := range subjects {
			if s.Kind == "ServiceAccount" && s.Name == "default" {
				found = append(found, "the binding "+name)
			}
		}
	}
	for _, b := range o.ClusterRoleBindings {
		each(b.Name, "", b.Subjects)
	}
	for _, b := range o.RoleBindings {
		each(b.Namespace+"/"+b.Name, b.Namespace, b.Subjects)
	}
	for i := range o.Pods {
		if p := &o.Pods[i]; !system(p.Namespace) && p.Spec.ServiceAccountName == "default" && o.mounts(p) {
			found = append(found, "pod "+p.Namespace+"/"+p.Name)
		}
	}
	if found != nil {
		return person("%s", some(found))
	}
	return pass("no binding and no pod has one")
}

// mounts reports whether a pod gets a token of its service account.
func (o *Objects) mounts(p *corev1.Pod) bool {
	if v := p.Spec.AutomountServiceAccountToken; v != nil {
		return *v
	}
	for i := range o.ServiceAccounts {
		if a := &o.ServiceAccounts[i]; a.Namespace == p.Namespace && a.Name == p.Spec.ServiceAccountName {
			return ptr.Deref(a.AutomountServiceAccountToken, true)
		}
	}
	return true
}

func mountedTokens(o *Objects) Verdict {
	return ofPods(o, "no pod of users mounts one", o.mounts)
}

// ofPods lists the pods of users to which a question is to be answered by a person.
func ofPods(o *Objects, otherwise string, concerns func(*corev1.Pod) bool) Verdict {
	var found []string
	for i := range o.Pods {
		if p := &o.Pods[i]; !system(p.Namespace) && concerns(p) {
			found = append(found, p.Namespace+"/"+p.Name)
		}
	}
	if found != nil {
		return person("%s", some(found))
	}
	return pass("%s", otherwise)
}

func networkPolicies(o *Objects) Verdict {
	has := map[string]bool{}
	for i := range o.NetworkPolicies {
		has[o.NetworkPolicies[i].Namespace] = true
	}
	var without []string
	for i := range o.Pods {
		if n := o.Pods[i].Namespace; !system(n) && !has[n] && !slices.Contains(without, n) {
			without = append(without, n)
		}
	}
	if without != nil {
		return person("pods without policies: %s", some(without))
	}
	return pass("each namespace of users with pods has some")
}

func secretVariables(o *Objects) Verdict {
	return ofPods(o, "no pod of users has one", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers),
			func(c corev1.Container) bool {
				return slices.ContainsFunc(c.EnvFrom,
					func(f corev1.EnvFromSource) bool { return f.SecretRef != nil }) ||
					slices.ContainsFunc(c.Env,
						func(v corev1.EnvVar) bool { return v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil })
			})
	})
}

func imagePolicies(e *Evidence) Verdict {
	v := reports(plugin("ImagePolicyWebhook", true))(e)
	if v.Status == Pass {
		return person("ImagePolicyWebhook runs: see that its backend verifies images, and that defaultAllow is false")
	}
	return objects(func(o *Objects) Verdict {
		switch {
		case len(o.ImagePolicies) == 0 && v.Status == Unknown:
			return v
		case len(o.ImagePolicies) == 0:
			return fail(
				"no validating webhook and no policy sees pods, and ImagePolicyWebhook does not run on all servers")
		}
		return person("see that one verifies images: %s", some(o.ImagePolicies))
	})(e)
}

func namespaces(o *Objects) Verdict {
	names := slices.DeleteFunc(OfUsers(o.Namespaces), func(n string) bool { return n == "default" })
	if len(names) == 0 {
		return person("there is none besides default")
	}
	return person("%s", some(names))
}

func securityContexts(o *Objects) Verdict {
	return ofPods(o, "each pod of users has one", func(p *corev1.Pod) bool {
		return (p.Spec.SecurityContext == nil || reflect.ValueOf(*p.Spec.SecurityContext).IsZero()) &&
			slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.SecurityContext == nil })
	})
}

func defaultNamespace(o *Objects) Verdict {
	var found []string
	for i := range o.Pods {
		if o.Pods[i].Namespace == "default" {
			found = append(found, "pod "+o.Pods[i].Name)
		}
	}
	for i := range o.Services {
		if s := &o.Services[i]; s.Namespace == "default" && s.Name != "kubernetes" {
			found = append(found, fmt.Sprintf("Service %s", s.Name))
		}
	}
	if found != nil {
		return person("%s", some(found))
	}
	return pass("neither pods nor Services")
}
