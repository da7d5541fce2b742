package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// compact merges rules that differ in their verbs alone, where each is about one resource of one
// group: most of the rules that Covers breaks others into. The rest stays as it is.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	merged := map[string]int{} // places in out
	for _, r := range rules {
		if len(r.APIGroups) != 1 || len(r.Resources) != 1 || len(r.ResourceNames) > 1 || len(r.NonResourceURLs) > 0 {
			out = append(out, r)
			continue
		}
		key := strings.Join(append([]string{r.APIGroups[0], r.Resources[0]}, r.ResourceNames...), "\x00")
		at, ok := merged[key]
		if !ok {
			merged[key] = len(out)
			r.Verbs = slices.Clone(r.Verbs)
			out = append(out, r)
			continue
		}
		for _, verb := range r.Verbs {
			if !slices.Contains(out[at].Verbs, verb) {
				out[at].Verbs = append(out[at].Verbs, verb)
			}
		}
	}
	return out
}

// describeAll prints rules, each on a line of its own: compacted, sorted, and none twice.
func describeAll(rules []rbacv1.PolicyRule) string {
	var lines []string
	for _, r := range compact(rules) {
		lines = append(lines, describe(&r))
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}
