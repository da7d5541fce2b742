package options

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// noTaint stands for no taint, in place of a profile's.
const noTaint = "none"

// checkTaints refuses taints that parseTaints cannot read.
func checkTaints(texts []string) error {
	_, err := ParseTaints(texts)
	return err
}

// ParseTaints reads taints as kubectl writes them: key=value:Effect, or key:Effect.
func ParseTaints(texts []string) ([]corev1.Taint, error) {
	var out []corev1.Taint
	for _, text := range texts {
		if text == noTaint {
			continue
		}
		pair, effect, ok := strings.Cut(text, ":")
		key, value, _ := strings.Cut(pair, "=")
		switch corev1.TaintEffect(effect) {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			ok = false
		}
		bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if !ok || len(bad) > 0 {
			return nil,
				fmt.Errorf("taint %q: want key=value:NoSchedule, :PreferNoSchedule or :NoExecute%s", text,
					strings.Join(append([]string{""}, bad...), "; "))
		}
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return out, nil
}
