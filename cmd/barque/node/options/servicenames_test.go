package options

import (
	"testing"
)

func TestNamesOfServicesAreNoMachines(t *testing.T) {
	for name, want := range map[string]bool{
		"metrics.audit.svc": true, "metrics.audit.svc.cluster.local": true, "metrics.audit.svc.other": true,
		"a.pod.metrics.audit.svc": true,
		"kubernetes":              true, "kubernetes.default.svc": true, "kubernetes.x.y.z": true,
		"cluster.local":      true,
		"node.cluster.local": true,
		"localhost":          true, "a.localhost": true,
		"a1": false, "metrics": false, "node1.lan": false, "a1.example.org": false, "svc": false,
		"svc.example.org": false, "db.svc": false,
		"kubernetes-1": false, "mycluster.local": false, "a.b.c.d": false,
	} {
		if why := OfServices(name, "cluster.local"); (why != "") != want {
			t.Errorf("%s: %q", name, why)
		}
	}
}
