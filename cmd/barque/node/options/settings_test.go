package options

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/network/ranges"
)

func TestSettingsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Settings){
		"overlap":  func(s *Settings) { s.ServiceCIDRs = ranges.Prefixes{netip.MustParsePrefix("10.42.128.0/17")} },
		"tiny":     func(s *Settings) { s.ClusterCIDRs = ranges.Prefixes{netip.MustParsePrefix("10.42.0.0/28")} },
		"families": func(s *Settings) { s.ClusterCIDRs = ranges.Prefixes{netip.MustParsePrefix("fd00::/56")} },
		"order": func(s *Settings) {
			s.ClusterCIDRs = append(s.ClusterCIDRs, netip.MustParsePrefix("fd00:42::/56"))
			s.ServiceCIDRs = ranges.Prefixes{netip.MustParsePrefix("fd00:43::/112"), s.ServiceCIDRs[0]}
		},
		"twice":  func(s *Settings) { s.ClusterCIDRs = append(s.ClusterCIDRs, netip.MustParsePrefix("10.44.0.0/16")) },
		"domain": func(s *Settings) { s.Domain = "not a domain" },
	} {
		s := DefaultSettings()
		change(&s)
		if err := s.validate(); err == nil {
			t.Errorf("%s: accepted %+v", name, s)
		}
	}
	if s := DefaultSettings(); s.validate() != nil || s.APIAddr() != netip.MustParseAddr("10.43.0.1") {
		t.Errorf("defaults: %v, API %s", s.validate(), s.APIAddr())
	}
}

func TestParseTaints(t *testing.T) {
	got, err := ParseTaints([]string{"dedicated=gpu:NoSchedule", "node.kubernetes.io/x:NoExecute"})
	want := []corev1.Taint{{Key: "dedicated", Value: "gpu", Effect: "NoSchedule"},
		{Key: "node.kubernetes.io/x", Effect: "NoExecute"}}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "x", "x=y", "x=y:Never", "=y:NoSchedule", "a b=c:NoSchedule"} {
		if _, err := ParseTaints([]string{bad}); err == nil {
			t.Errorf("taint %q was accepted", bad)
		}
	}
}
