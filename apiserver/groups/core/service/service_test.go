package service

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

// admitted is a service as it is after defaulting and preparation, with clusterIPs as the allocator
// fills them in.
func admitted(t *testing.T, text string, old *corev1.Service) *corev1.Service {
	t.Helper()
	s := grouptest.Parse[corev1.Service](t, text)
	defaultService(s)
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	prepareService(context.Background(), s, old)
	return s
}

func TestServiceDefaults(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"cluster IP": {
			`{spec: {selector: {a: b}, ports: [{port: 80}, {name: x, port: 81, protocol: UDP, targetPort: dns}]}}`,
			`{spec: {type: ClusterIP, selector: {a: b}, sessionAffinity: None, internalTrafficPolicy: Cluster, 
			  ports: [{port: 80, protocol: TCP, targetPort: 80}, {name: x, port: 81, protocol: UDP, targetPort: dns}]}, status: {loadBalancer: {}}}`,
		},
		"load balancer": {
			`{spec: {type: LoadBalancer, ports: [{port: 80}]}}`,
			`{spec: {type: LoadBalancer, sessionAffinity: None, internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster, allocateLoadBalancerNodePorts: true,
			  ports: [{port: 80, protocol: TCP, targetPort: 80}]}, status: {loadBalancer: {}}}`,
		},
		"session affinity": {
			`{spec: {sessionAffinity: ClientIP, ports: [{port: 80}]}}`,
			`{spec: {type: ClusterIP, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}, internalTrafficPolicy: Cluster,
			  ports: [{port: 80, protocol: TCP, targetPort: 80}]}, status: {loadBalancer: {}}}`,
		},
		"external name": {
			`{spec: {type: ExternalName, externalName: example.com}}`,
			`{spec: {type: ExternalName, externalName: example.com, sessionAffinity: None}, status: {loadBalancer: {}}}`,
		},
		"headless without selector": {
			`{spec: {clusterIP: None}}`,
			`{spec: {type: ClusterIP, clusterIP: None, clusterIPs: [None], sessionAffinity: None, internalTrafficPolicy: Cluster}, status: {loadBalancer: {}}}`,
		},
		"given address": {
			`{spec: {selector: {a: b}, clusterIP: 10.43.0.9, ports: [{port: 80}]}}`,
			`{spec: {type: ClusterIP, selector: {a: b}, clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9], sessionAffinity: None, internalTrafficPolicy: Cluster, 
			  ports: [{port: 80, protocol: TCP, targetPort: 80}]}, status: {loadBalancer: {}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(grouptest.Parse[corev1.Service](t, c.want), admitted(t, c.in, nil)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceUpdateDropsForeignFields(t *testing.T) {
	old := admitted(t, `{spec: {type: NodePort, clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9], 
	  ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 81, nodePort: 30081}]}}`, nil)
	t.Run("to cluster IP", func(t *testing.T) {
		s := old.DeepCopy()
		s.Spec.Type = corev1.ServiceTypeClusterIP
		prepareService(context.Background(), s, old)
		if s.Spec.Ports[0].NodePort != 0 || s.Spec.ExternalTrafficPolicy != "" || s.Spec.ClusterIP == "" {
			t.Errorf("what belongs to node ports is left, or the address is gone: %+v", s.Spec)
		}
		grouptest.WantErrors(t, validateService(context.Background(), named(s), named(old)))
	})
	t.Run("to cluster IP with a node port of its own", func(t *testing.T) {
		s := old.DeepCopy()
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, 30090
		prepareService(context.Background(), s, old)
		grouptest.WantErrors(t, validateService(context.Background(), named(s), named(old)),
			grouptest.Forbidden+"spec.ports[0].nodePort", grouptest.Forbidden+"spec.ports[1].nodePort")
	})
	t.Run("to external name", func(t *testing.T) {
		s := old.DeepCopy()
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		prepareService(context.Background(), s, old)
		grouptest.WantErrors(t, validateService(context.Background(), named(s), named(old)))
		if s.Spec.ClusterIP != "" || len(s.Spec.ClusterIPs) != 0 || len(s.Spec.IPFamilies) != 0 ||
			s.Spec.InternalTrafficPolicy != nil {
			t.Errorf("the address or what goes with it is left: %+v", s.Spec)
		}
	})
}

func named(s *corev1.Service) *corev1.Service {
	s.Name, s.Namespace, s.ResourceVersion = "s", "default", "1"
	return s
}

func TestValidateService(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good":               {`{ports: [{port: 80}]}`, nil},
		"headless, no ports": {`{clusterIP: None, selector: {a: b}}`, nil},
		"no ports":           {`{}`, []string{grouptest.Missing + "spec.ports"}},
		"type":               {`{type: Pigeon, ports: [{port: 80}]}`, []string{grouptest.Unknown + "spec.type"}},
		"only the type": {
			`{type: Pigeon, clusterIP: 10.43.0.9, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, ports: [{port: 80}]}`, []string{grouptest.Unknown + "spec.type"}},
		"ports": {
			`{ports: [{port: 0, targetPort: 1}, {name: A, port: 80, protocol: X, targetPort: too-long-for-a-port}]}`,
			[]string{grouptest.Missing + "spec.ports[0].name", grouptest.Invalid + "spec.ports[0].port",
				grouptest.Invalid + "spec.ports[1].name", grouptest.Unknown + "spec.ports[1].protocol",
				grouptest.Invalid + "spec.ports[1].targetPort"}},
		"same ports": {`{ports: [{name: a, port: 80}, {name: a, port: 80}]}`,
			[]string{grouptest.Duplicate + "spec.ports[1]", grouptest.Duplicate + "spec.ports[1].name"}},
		"node port": {`{ports: [{port: 80, nodePort: 30000}]}`,
			[]string{grouptest.Forbidden + "spec.ports[0].nodePort"}},
		"same node port": {
			`{type: NodePort, ports: [{name: a, port: 80, nodePort: 30000}, {name: b, port: 81, nodePort: 30000}]}`,
			[]string{grouptest.Duplicate + "spec.ports[1].nodePort"}},
		"address": {`{clusterIP: here, clusterIPs: [here], ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.clusterIPs[0]"}},
		"headless node port": {
			`{type: NodePort, clusterIP: None, clusterIPs: [None], selector: {a: b}, ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.clusterIPs[0]"}},
		"two addresses": {`{clusterIP: 10.43.0.9, clusterIPs: [10.43.0.8], ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.clusterIPs"}},
		"families": {`{ipFamilyPolicy: Many, ipFamilies: [IPv4, IPv4, IPX], ports: [{port: 80}]}`,
			[]string{grouptest.Unknown + "spec.ipFamilyPolicy", grouptest.Duplicate + "spec.ipFamilies[1]",
				grouptest.Unknown + "spec.ipFamilies[2]"}},
		"two of a family": {`{clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9, 10.43.0.8], ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.clusterIPs"}},
		"other family": {
			`{clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9], ipFamilies: [IPv6], ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.clusterIPs[0]"}},
		"none and another": {`{clusterIP: None, clusterIPs: [None, 10.43.0.9], ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.clusterIPs"}},
		"affinity": {`{sessionAffinity: Sticky, ports: [{port: 80}]}`,
			[]string{grouptest.Unknown + "spec.sessionAffinity"}},
		"affinity timeout": {
			`{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 90000}}, ports: [{port: 80}]}`, []string{grouptest.Invalid + "spec.sessionAffinityConfig.clientIP.timeoutSeconds"}},
		"traffic policies": {`{externalTrafficPolicy: Local, internalTrafficPolicy: Mine, ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.externalTrafficPolicy",
				grouptest.Unknown + "spec.internalTrafficPolicy"}},
		"health check": {`{healthCheckNodePort: 30000, ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.healthCheckNodePort"}},
		"load balancer only": {
			`{loadBalancerClass: a/b, allocateLoadBalancerNodePorts: true, loadBalancerSourceRanges: [10.0.0.0/33], ports: [{port: 80}]}`, []string{grouptest.Forbidden + "spec.loadBalancerClass", grouptest.Forbidden + "spec.allocateLoadBalancerNodePorts", grouptest.Forbidden + "spec.LoadBalancerSourceRanges", grouptest.Invalid + "spec.LoadBalancerSourceRanges[0]"}},
		"external IPs": {`{externalIPs: [127.0.0.1, x], ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.externalIPs[0]", grouptest.Invalid + "spec.externalIPs[1]"}},
		"external name": {`{type: ExternalName}`, []string{grouptest.Missing + "spec.externalName"}},
		"bad external name": {`{type: ExternalName, externalName: a_b, clusterIP: 10.43.0.1, clusterIPs: [10.43.0.1]}`,
			[]string{grouptest.Invalid + "spec.externalName", grouptest.Forbidden + "spec.clusterIPs"}},
		"selector": {`{selector: {"a b": c}, ports: [{port: 80}]}`,
			[]string{grouptest.Invalid + "spec.selector"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := named(admitted(t, "spec: "+c.spec, nil))
			grouptest.WantErrors(t, validateService(context.Background(), s, nil), c.want...)
		})
	}
}

func TestServiceUpdateOfAddresses(t *testing.T) {
	const both = `clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9, "fd00::9"], ipFamilies: [IPv4, IPv6]`
	for name, c := range map[string]struct {
		old, spec string
		want      []string
	}{
		"same": {both, both, nil},
		"first address": {`clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9]`,
			`clusterIP: 10.43.0.10, clusterIPs: [10.43.0.10]`, []string{grouptest.Invalid + "spec.clusterIPs[0]"}},
		"second address": {both, `clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9, "fd00::8"], ipFamilies: [IPv4, IPv6]`,
			[]string{grouptest.Invalid + "spec.clusterIPs[1]"}},
		"second one more": {`clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9], ipFamilies: [IPv4]`, both, nil},
		"second one less": {both,
			`clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack`, nil},
		"without a policy": {both, `clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9], ipFamilies: [IPv4]`,
			[]string{grouptest.Invalid + "spec.ipFamilyPolicy", grouptest.Invalid + "spec.ipFamilyPolicy"}},
		"order": {both, `clusterIP: "fd00::9", clusterIPs: ["fd00::9", 10.43.0.9], ipFamilies: [IPv6, IPv4]`,
			[]string{grouptest.Invalid + "spec.clusterIPs[0]", grouptest.Invalid + "spec.clusterIPs[1]",
				grouptest.Invalid + "spec.ipFamilies[0]", grouptest.Invalid + "spec.ipFamilies[0]"}},
		"no address": {both, ``,
			[]string{grouptest.Invalid + "spec.clusterIPs[0]", grouptest.Invalid + "spec.ipFamilies[0]"}},
		"headless family": {`clusterIP: None, clusterIPs: [None], ipFamilies: [IPv4]`,
			`clusterIP: None, clusterIPs: [None], ipFamilies: [IPv6]`, nil},
		"to headless": {`clusterIP: 10.43.0.9, clusterIPs: [10.43.0.9]`, `clusterIP: None, clusterIPs: [None]`,
			[]string{grouptest.Invalid + "spec.clusterIPs[0]"}},
		"from a name": {`type: ExternalName, externalName: a.example`, both, nil},
	} {
		t.Run(name, func(t *testing.T) {
			old := named(admitted(t, "{spec: {ports: [{port: 80}], "+c.old+"}}", nil))
			s := named(admitted(t, "{spec: {ports: [{port: 80}], "+c.spec+"}}", old))
			grouptest.WantErrors(t, validateService(context.Background(), s, old), c.want...)
		})
	}
}

func TestServiceRow(t *testing.T) {
	for name, c := range map[string]struct {
		service string
		want    []any
	}{
		"cluster IP": {
			`{metadata: {name: s}, spec: {type: ClusterIP, clusterIP: 10.43.0.9, selector: {b: c, a: b}, ports: [{port: 80, protocol: TCP}, {port: 53, protocol: UDP}]}}`,
			[]any{"s", "ClusterIP", "10.43.0.9", "<none>", "80/TCP,53/UDP", "5m", "a=b,b=c"},
		},
		"node port": {
			`{metadata: {name: s}, spec: {type: NodePort, clusterIP: 10.43.0.9, externalIPs: [1.2.3.4], ports: [{port: 80, nodePort: 30080, protocol: TCP}]}}`,
			[]any{"s", "NodePort", "10.43.0.9", "1.2.3.4", "80:30080/TCP", "5m", "<none>"},
		},
		"pending load balancer": {
			`{metadata: {name: s}, spec: {type: LoadBalancer, clusterIP: 10.43.0.9}}`,
			[]any{"s", "LoadBalancer", "10.43.0.9", "<pending>", "<none>", "5m", "<none>"},
		},
		"load balancer": {
			`{metadata: {name: s}, spec: {type: LoadBalancer, clusterIP: 10.43.0.9}, status: {loadBalancer: {ingress: [{ip: 9.9.9.9}, {hostname: lb.example}]}}}`,
			[]any{"s", "LoadBalancer", "10.43.0.9", "9.9.9.9,lb.example", "<none>", "5m", "<none>"},
		},
		"external name": {
			`{metadata: {name: s}, spec: {type: ExternalName, externalName: example.com}}`,
			[]any{"s", "ExternalName", "<none>", "example.com", "<none>", "5m", "<none>"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := grouptest.Parse[corev1.Service](t, c.service)
			s.CreationTimestamp = grouptest.Ago(5 * time.Minute)
			grouptest.WantRow(t, Resource(), s, c.want...)
		})
	}
}
