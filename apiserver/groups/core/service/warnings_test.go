package service

import (
	"context"
	"slices"
	"testing"
)

func TestServiceWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		service string
		want    []string
	}{
		"nothing": {`{spec: {ports: [{port: 80}]}}`, nil},
		"headless": {
			`{spec: {clusterIP: None, loadBalancerIP: 1.2.3.4, externalIPs: [1.2.3.4], sessionAffinity: ClientIP}}`,
			[]string{"spec.SessionAffinity is ignored for headless services",
				"spec.externalIPs is ignored for headless services",
				"spec.loadBalancerIP is ignored for headless services"}},
		"external IPs": {`{spec: {externalIPs: [1.2.3.4]}}`,
			[]string{"spec.externalIPs is deprecated and may no longer be implemented in some clusters"}},
		"external name": {`{spec: {type: ExternalName, externalName: a.b, externalIPs: [1.2.3.4]}}`,
			[]string{`spec.externalIPs is ignored when spec.type is "ExternalName"`}},
		"name of none": {`{spec: {externalName: a.b}}`,
			[]string{`spec.externalName is ignored when spec.type is not "ExternalName"`}},
		"hints": {`{metadata: {annotations: {service.kubernetes.io/topology-aware-hints: Auto}}}`,
			[]string{
				"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead"}},
		"close": {`{spec: {trafficDistribution: PreferClose}}`,
			[]string{`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`}},
		"addresses": {`{spec: {clusterIP: 'fd00:0::1', loadBalancerIP: 01.2.3.4}}`,
			[]string{`spec.clusterIPs[0]: IPv6 address "fd00:0::1" should be in RFC 5952 canonical format ("fd00::1")`,
				`spec.loadBalancerIP: non-standard IP address "01.2.3.4" is invalid: use "1.2.3.4"`}},
	} {
		t.Run(name, func(t *testing.T) {
			got := serviceWarnings(context.Background(), admitted(t, c.service, nil), nil)
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
		})
	}
}
