package translate

import (
	"slices"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// The names of features are upstream's, each once and in order, as the status of a class must have
// them. One depends on the ports that listeners may have.
func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		name  string
		ports []uint16
		pool  bool
		has   bool
	}{{"usual ports", []uint16{80, 443}, false, false}, {"with 8080 and a pool", []uint16{80, 443, 8080}, true, true}} {
		t.Run(c.name, func(t *testing.T) {
			class := &gatewayv1.GatewayClass{}
			if c.pool {
				class = poolClass("lan")
			}
			all := Features(class, Ports{Allowed: c.ports})
			for i, f := range all {
				if !features.SetsToNamesSet(features.AllFeatures).Has(features.FeatureName(f.Name)) {
					t.Errorf("upstream has no feature %s", f.Name)
				}
				if i > 0 && all[i-1].Name >= f.Name {
					t.Errorf("%s stands before %s", all[i-1].Name, f.Name)
				}
			}
			port := gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(features.SupportGatewayPort8080)}
			if slices.Contains(all, port) != c.has {
				t.Errorf("features: %v", all)
			}
			labels := gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(features.SupportGatewayInfrastructure)}
			if slices.Contains(all, labels) != c.pool {
				t.Errorf("features with a pool %v: %v", c.pool, all)
			}
		})
	}
}
