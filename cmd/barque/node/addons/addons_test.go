package addons

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestDefinitionsAreRead reads the definitions as a server does at its start: strictly.
func TestDefinitionsAreRead(t *testing.T) {
	names := map[string]bool{}
	for _, text := range Definitions() {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Error(err)
			continue
		}
		names[crd.Name] = true
	}
	for _, want := range []string{"manifests.barque.io", "helmcharts.helm.cattle.io",
		"helmchartconfigs.helm.cattle.io"} {
		if !names[want] {
			t.Errorf("there is no definition of %s", want)
		}
	}
}
