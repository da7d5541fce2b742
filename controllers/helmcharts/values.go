package helmcharts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/strvals"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// secretsOf returns a Secret of a HelmChart's namespace; nil if there is none.
type secretsOf func(name string) (*corev1.Secret, error)

// valuesOf merges the values of a chart, in the order of k3s: valuesContent, values and the Secrets
// of the HelmChart, those of the HelmChartConfig, and set. Later ones win. counted are the same
// without Secrets whose updates are to be ignored.
func valuesOf(o *Object, config *Config, secrets secretsOf) (all, counted map[string]any, err error) {
	all, counted = map[string]any{}, map[string]any{}
	specs := []ValuesSpec{o.Spec.ValuesSpec}
	if config != nil {
		specs = append(specs, config.Spec)
	}
	for _, spec := range specs {
		values, err := parseValues(spec.ValuesContent)
		if err != nil {
			return nil, nil, fmt.Errorf("valuesContent: %w", err)
		}
		for _, more := range []map[string]any{values, spec.Values} {
			all, counted = loader.MergeMaps(all, more), loader.MergeMaps(counted, more)
		}
		for _, s := range spec.ValuesSecrets {
			values, err := secretValues(s, secrets)
			if err != nil {
				return nil, nil, err
			}
			all = loader.MergeMaps(all, values)
			if !s.IgnoreUpdates {
				counted = loader.MergeMaps(counted, values)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(o.Spec.Set)) {
		for _, into := range []map[string]any{all, counted} {
			if err := set(into, key, o.Spec.Set[key]); err != nil {
				return nil, nil, fmt.Errorf("set %s: %w", key, err)
			}
		}
	}
	return all, counted, nil
}

func secretValues(s ValuesSecret, secrets secretsOf) (map[string]any, error) {
	out := map[string]any{}
	if len(s.Keys) == 0 {
		return out, nil // as in k3s
	}
	secret, err := secrets(s.Name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		if s.IgnoreUpdates {
			return out, nil
		}
		return nil, fmt.Errorf("valuesSecrets: there is no Secret %s; it is waited for", s.Name)
	}
	for _, key := range s.Keys {
		text, exists := secret.Data[key]
		if !exists && !s.IgnoreUpdates {
			return nil, fmt.Errorf("valuesSecrets: the Secret %s has no key %s; it is waited for", s.Name, key)
		}
		values, err := parseValues(string(text))
		if err != nil {
			// The parser's message would show a line of the Secret.
			return nil, fmt.Errorf("valuesSecrets: key %s of the Secret %s is no YAML object", key, s.Name)
		}
		out = loader.MergeMaps(out, values)
	}
	return out, nil
}

func parseValues(text string) (map[string]any, error) {
	return loader.LoadValues(strings.NewReader(text))
}

// set sets one key as `helm --set` does for numbers and true, false and null, and as `--set-string`
// does for others. k3s decides it so.
func set(values map[string]any, key string, value intstr.IntOrString) error {
	text := value.String()
	switch strings.ToLower(text) {
	case "true", "false", "null":
		return strvals.ParseInto(key+"="+text, values)
	}
	if value.Type == intstr.Int {
		return strvals.ParseInto(key+"="+text, values)
	}
	return strvals.ParseIntoString(key+"="+escapeCommas(text), values)
}

// escapeCommas puts a backslash before each comma that has none.
func escapeCommas(text string) string {
	var b strings.Builder
	slashes := 0
	for _, r := range text {
		if r == ',' && slashes%2 == 0 {
			b.WriteByte('\\')
		}
		if r == '\\' {
			slashes++
		} else {
			slashes = 0
		}
		b.WriteRune(r)
	}
	return b.String()
}

// digest identifies what a HelmChart asks for. It is a label of Helm's record.
func digest(o *Object, config *Config, values map[string]any) (string, error) {
	force, side := o.Spec.ForceConflicts, o.Spec.ServerSide
	if config != nil {
		force = force || config.Spec.ForceConflicts
		if config.Spec.ServerSide != "" {
			side = config.Spec.ServerSide
		}
	}
	raw, err := json.Marshal(map[string]any{
		"edition": 1, "chart": o.Spec.Chart, "version": o.Spec.Version, "repo": o.Spec.Repo,
		"content": o.Spec.ChartContent, "values": values, "takeOwnership": o.Spec.TakeOwnership,
		"forceConflicts": force, "serverSide": side,
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:40], nil
}
