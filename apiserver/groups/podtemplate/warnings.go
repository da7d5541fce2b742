package podtemplate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Warnings tells what is valid in a pod spec and yet hardly meant, at spec or below the given
// path elements, such as "spec", "template".
func Warnings(spec *corev1.PodSpec, above ...string) []string {
	at := field.NewPath("spec")
	if len(above) > 0 {
		at = field.NewPath(above[0], above[1:]...).Child("spec")
	}
	var out []string
	warn := func(at *field.Path, format string, args ...any) {
		out = append(out, fmt.Sprintf("%s: ", at)+fmt.Sprintf(format, args...))
	}
	for i, s := range spec.ImagePullSecrets {
		if s.Name == "" {
			warn(at.Child("imagePullSecrets").Index(i).Child("name"), "invalid empty name %q", s.Name)
		}
	}
	for i, c := range spec.Containers {
		seen := map[string]bool{}
		for j, e := range c.Env {
			if seen[e.Name] {
				warn(at.Child("containers").Index(i).Child("env").Index(j), "hides previous definition of %q, which may be dropped when using apply", e.Name)
			}
			seen[e.Name] = true
		}
	}
	for i, a := range spec.HostAliases {
		for j := range i {
			if spec.HostAliases[j].IP == a.IP {
				warn(at.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", a.IP)
			}
		}
	}
	if s := spec.TerminationGracePeriodSeconds; s != nil && *s < 0 {
		warn(at.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	return out
}
