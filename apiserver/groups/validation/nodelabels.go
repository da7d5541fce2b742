package validation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// renamedNodeLabels are labels of nodes that have new names, or no use any more.
var renamedNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  `deprecated since v1.9`,
	"scheduler.alpha.kubernetes.io/preferAvoidPods": `deprecated since v1.22; use Taints and Tolerations instead`,
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

// NodeSelectorWarnings warns of labels in a selector of nodes that have new names.
func NodeSelectorWarnings(selector map[string]string, at *field.Path) []string {
	var warnings []string
	for _, label := range SortedKeys(selector) {
		if renamed, ok := renamedNodeLabels[label]; ok {
			warnings = append(warnings, fmt.Sprintf("%s: %s", at, renamed))
		}
	}
	return warnings
}

// NodeLabelWarning warns of a label of nodes, named at a path, that has a new name.
func NodeLabelWarning(label string, at *field.Path) []string {
	if renamed, ok := renamedNodeLabels[label]; ok {
		return []string{fmt.Sprintf("%s: %s is %s", at, label, renamed)}
	}
	return nil
}
