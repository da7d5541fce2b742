package node

import (
	"testing"
	"time"
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
		if why := ofServices(name, "cluster.local"); (why != "") != want {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func TestAgentCIDRs(t *testing.T) {
	for text, want := range map[string]bool{"203.0.113.0/24": true, "2001:db8::/32": true, "203.0.113.1/24": false,
		"203.0.113.1": false, "": false} {
		o := &Options{AgentCIDRs: []string{text}}
		if err := o.parseAgentCIDRs(); (err == nil) != want || (len(o.AgentPrefixes) == 1) != want {
			t.Errorf("%q: %v, %v", text, o.AgentPrefixes, err)
		}
	}
}

func TestTokenOptions(t *testing.T) {
	if o := DefaultTokenOptions(); o.validate() != nil || o.MaxExpiration == 0 {
		t.Errorf("by default %+v", o)
	}
	for text, want := range map[int64]bool{0: true, 3600: true, 3599: false, -1: false, 1<<32 - 1: true,
		1 << 32: false} {
		o := TokenOptions{MaxExpiration: time.Duration(text) * time.Second}
		if err := o.validate(); (err == nil) != want {
			t.Errorf("%d s: %v", text, err)
		}
	}
}
