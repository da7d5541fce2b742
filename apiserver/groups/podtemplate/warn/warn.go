// Package warn warns of values in pods, templates and claims that are valid, but probably a
// mistake, or deprecated. Clients show the warnings beside the answer. It is pure.
package warn

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

// Spec warns of values in a pod spec that are valid, but probably a mistake, at spec or below
// the given path elements, such as "spec", "template".
func Spec(spec *corev1.PodSpec, above ...string) []string {
	return warnings(spec, &metav1.ObjectMeta{}, path(above))
}

// Pod is Spec for a new pod and its metadata.
func Pod(p *corev1.Pod) []string {
	const advice = "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v"
	return append(nameWarnings(p.Name, advice), warnings(&p.Spec, &p.ObjectMeta, nil)...)
}

// Template is Spec for a template and its metadata. name is the name of a new workload
// whose pods are named after it; empty when it is not new.
func Template(name string, t *corev1.PodTemplateSpec, above ...string) []string {
	const advice = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v"
	return append(nameWarnings(name, advice), warnings(&t.Spec, &t.ObjectMeta, path(above))...)
}

func path(above []string) *field.Path {
	if len(above) == 0 {
		return nil
	}
	return field.NewPath(above[0], above[1:]...)
}

func nameWarnings(name, advice string) []string {
	if name == "" {
		return nil
	}
	if wrong := utilvalidation.IsDNS1123Label(name); len(wrong) > 0 {
		return []string{fmt.Sprintf(advice, wrong)}
	}
	return nil
}

// warner collects warnings about one pod spec and the metadata beside it.
type warner struct {
	spec *corev1.PodSpec
	meta *metav1.ObjectMeta
	at   *field.Path // of the pod or template; nil for a pod
	out  []string
}

func warnings(spec *corev1.PodSpec, meta *metav1.ObjectMeta, at *field.Path) []string {
	w := &warner{spec: spec, meta: meta, at: at}
	w.placement()
	w.annotations()
	w.volumes()
	w.lists()
	w.add(fractions(spec.Overhead, w.path("overhead"), corev1.ResourceMemory, corev1.ResourceEphemeralStorage)...)
	w.containers()
	w.ports()
	if s := spec.TerminationGracePeriodSeconds; s != nil && *s < 0 {
		w.warn(w.path("terminationGracePeriodSeconds"),
			"must be >= 0; negative values are invalid and will be treated as 1")
	}
	w.affinity()
	w.addresses()
	return w.out
}

// path is the path of a field of the spec.
func (w *warner) path(name string, more ...string) *field.Path {
	return w.at.Child("spec", append([]string{name}, more...)...)
}

func (w *warner) add(warnings ...string) { w.out = append(w.out, warnings...) }

func (w *warner) warn(at *field.Path, format string, args ...any) {
	w.add(fmt.Sprintf("%s: ", at) + fmt.Sprintf(format, args...))
}

// placement warns of labels of nodes that have new names.
func (w *warner) placement() {
	for _, label := range validation.SortedKeys(w.spec.NodeSelector) {
		w.add(validation.NodeSelectorWarnings(map[string]string{label: ""}, w.path("nodeSelector").Key(label))...)
	}
	if a := w.spec.Affinity; a != nil && a.NodeAffinity != nil {
		at := w.path("affinity", "nodeAffinity")
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			at := at.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
			for i := range required.NodeSelectorTerms {
				w.nodeTerm(&required.NodeSelectorTerms[i], false, at.Index(i))
			}
		}
		preferred := a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		for i := range preferred {
			w.nodeTerm(&preferred[i].Preference, true,
				at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("preference"))
		}
	}
	for i, c := range w.spec.TopologySpreadConstraints {
		at := w.path("topologySpreadConstraints").Index(i)
		w.add(validation.NodeLabelWarning(c.TopologyKey, at.Child("topologyKey"))...)
		w.selector(c.LabelSelector, at)
	}
}

func (w *warner) nodeTerm(term *corev1.NodeSelectorTerm, values bool, at *field.Path) {
	for i, e := range term.MatchExpressions {
		at := at.Child("matchExpressions").Index(i)
		w.add(validation.NodeLabelWarning(e.Key, at.Child("key"))...)
		for j, value := range e.Values {
			for _, wrong := range utilvalidation.IsValidLabelValue(value) {
				if values {
					w.warn(at.Child("values").Index(j), "%s is invalid, %s", value, wrong)
				}
			}
		}
	}
}

// selector warns of a selector of pods that is missing.
func (w *warner) selector(s *metav1.LabelSelector, at *field.Path) {
	if s == nil {
		w.warn(at.Child("labelSelector"), "a null labelSelector results in matching no pod")
	}
}

func (w *warner) affinity() {
	a := w.spec.Affinity
	if a == nil {
		return
	}
	terms := func(name string, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		at := w.path("affinity", name)
		for i := range required {
			w.selector(required[i].LabelSelector, at.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i))
		}
		for i := range preferred {
			w.selector(preferred[i].PodAffinityTerm.LabelSelector,
				at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm"))
		}
	}
	if p := a.PodAffinity; p != nil {
		terms("podAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		terms("podAntiAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// annotations warns of annotations that were replaced by fields.
func (w *warner) annotations() {
	for _, old := range []struct{ key, advice string }{
		{"scheduler.alpha.kubernetes.io/critical-pod",
			`non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		w.annotation(old.key, old.advice)
	}
}

func (w *warner) annotation(key, advice string) {
	if _, ok := w.meta.Annotations[key]; ok {
		w.warn(w.at.Child("metadata", "annotations").Key(key), "%s", advice)
	}
}

// lists warns of duplicate entries.
func (w *warner) lists() {
	seen := map[string]bool{}
	for i, alias := range w.spec.HostAliases {
		if seen[alias.IP] {
			w.warn(w.path("hostAliases").Index(i).Child("ip"), "duplicate ip %q", alias.IP)
		}
		seen[alias.IP] = true
	}
	seen = map[string]bool{}
	for i, secret := range w.spec.ImagePullSecrets {
		if seen[secret.Name] {
			w.warn(w.path("imagePullSecrets").Index(i).Child("name"), "duplicate name %q", secret.Name)
		}
		seen[secret.Name] = true
	}
	for i, secret := range w.spec.ImagePullSecrets {
		if secret.Name == "" {
			w.warn(w.path("imagePullSecrets").Index(i).Child("name"), "invalid empty name %q", secret.Name)
		}
	}
}

// addresses warns of addresses in unusual forms.
func (w *warner) addresses() {
	if w.spec.DNSConfig != nil {
		for i, ip := range w.spec.DNSConfig.Nameservers {
			w.address(ip, w.path("dnsConfig", "nameservers").Index(i))
		}
	}
	for i, alias := range w.spec.HostAliases {
		w.address(alias.IP, w.path("hostAliases").Index(i).Child("ip"))
	}
}

func (w *warner) address(ip string, at *field.Path) {
	if netutils.ParseIPSloppy(ip) != nil {
		w.add(utilvalidation.GetWarningsForIP(at, ip)...)
	}
}

// sameProfile reports whether the pod's own profile is the one that an annotation requests.
func (w *warner) sameProfile(annotation string) bool {
	c := w.spec.SecurityContext
	return c != nil && c.AppArmorProfile != nil &&
		apiequality.Semantic.DeepEqual(c.AppArmorProfile, podtemplate.AnnotatedAppArmor(annotation))
}
