package warn

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
)

// each calls f with every container and its path.
func (w *warner) each(f func(c *corev1.Container, at *field.Path)) {
	podtemplate.EachContainer(w.spec, w.at.Child("spec"), f)
}

// containers warns of probable mistakes within one container.
func (w *warner) containers() {
	const useSeccomp = `non-functional in v1.27+; use the "seccompProfile" field instead`
	if c := w.spec.SecurityContext; c == nil || c.SeccompProfile == nil {
		w.annotation(corev1.SeccompPodAnnotationKey, useSeccomp)
	}
	w.each(func(c *corev1.Container, at *field.Path) {
		if c.SecurityContext == nil || c.SecurityContext.SeccompProfile == nil {
			w.annotation(corev1.SeccompContainerAnnotationKeyPrefix+c.Name, useSeccomp)
		}
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		if w.at != nil && (c.SecurityContext == nil || c.SecurityContext.AppArmorProfile == nil) &&
			!w.sameProfile(w.meta.Annotations[key]) {
			w.annotation(key, `deprecated since v1.30; use the "appArmorProfile" field instead`)
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			w.add(fractions(c.Resources.Limits, at.Child("resources", "limits"), name)...)
			w.add(fractions(c.Resources.Requests, at.Child("resources", "requests"), name)...)
		}
		w.env(c.Env, at.Child("env"))
	})
}

// env warns of variables that hide one of the same name, unless they build on it.
func (w *warner) env(env []corev1.EnvVar, at *field.Path) {
	seen := map[string]bool{}
	for i, e := range env {
		before := fmt.Sprintf("$(%s)", e.Name)
		if seen[e.Name] && (e.ValueFrom != nil || e.Value == before || !strings.Contains(e.Value, before)) {
			w.warn(at.Index(i), "hides previous definition of %q, which may be dropped when using apply", e.Name)
		}
		seen[e.Name] = true
	}
}

// ports warns of ports that conflict, within one container or between two.
func (w *warner) ports() {
	type definition struct {
		port corev1.ContainerPort
		at   *field.Path
	}
	ports := map[string][]definition{}
	w.each(func(c *corev1.Container, at *field.Path) {
		for i, p := range c.Ports {
			at := at.Child("ports").Index(i)
			if p.HostIP != "" && p.HostPort == 0 {
				w.warn(at, "hostIP set without hostPort: %+v", p)
			}
			number := fmt.Sprintf("%d/%s", p.ContainerPort, p.Protocol)
			for _, other := range ports[number] {
				if kind := clash(p, other.port); kind != "" {
					w.warn(at, "%s port definition with %s", kind, other.at)
				}
			}
			ports[number] = append(ports[number], definition{p, at})
		}
	})
	names := map[string]*field.Path{}
	w.each(func(c *corev1.Container, at *field.Path) {
		for i, p := range c.Ports {
			at := at.Child("ports").Index(i)
			first, ok := names[p.Name]
			switch {
			case p.Name == "":
			case ok:
				w.warn(at, "duplicate port name %q with %s, services and probes that select ports by name will use %s",
					p.Name, first, first)
			default:
				names[p.Name] = at
			}
		}
	})
}

// clash describes the conflict of two definitions of one port; empty if there is none.
func clash(a, b corev1.ContainerPort) string {
	switch {
	case a.HostIP == b.HostIP && a.HostPort == b.HostPort:
		return "duplicate"
	case a.HostPort == 0 || b.HostPort == 0:
		return "overlapping"
	case a.HostPort == b.HostPort && (a.HostIP == "") != (b.HostIP == ""):
		return "dangerously ambiguous"
	}
	return ""
}

// fractions warns of fractions of the named resources, which are counted in bytes.
func fractions(list corev1.ResourceList, at *field.Path, names ...corev1.ResourceName) []string {
	var out []string
	for _, name := range names {
		if q := list[name]; q.MilliValue()%1000 != 0 {
			out = append(out,
				fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer", at.Key(string(name)),
					q.String()))
		}
	}
	return out
}
