package warn

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestWarnings(t *testing.T) {
	const (
		terms = "{requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}], preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: a}}]}"
		arch  = `deprecated since v1.14; use "kubernetes.io/arch" instead`
		none  = "a null labelSelector results in matching no pod"
	)
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good": {
			"containers: [{name: a, image: i, ports: [{containerPort: 80, name: http}, {containerPort: 80, protocol: UDP}], resources: {limits: {memory: 1Gi}}}]", nil},
		"node selector": {"nodeSelector: {beta.kubernetes.io/arch: arm, disk: ssd}",
			[]string{"spec.nodeSelector[beta.kubernetes.io/arch]: " + arch}},
		"node affinity": {
			"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: beta.kubernetes.io/arch, operator: In, values: ['a b']}]}]}}}",
			[]string{
				"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/arch is " + arch}},
		"node preference": {
			"affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: In, values: [x, 'a b']}]}}]}}",
			[]string{
				"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[1]: a b is invalid, a valid label must"}},
		"spread": {"topologySpreadConstraints: [{topologyKey: beta.kubernetes.io/arch}]",
			[]string{"spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/arch is " + arch,
				"spec.topologySpreadConstraints[0].labelSelector: " + none}},
		"affinity": {"affinity: {podAffinity: " + terms + ", podAntiAffinity: " + terms + "}", []string{
			"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: " + none,
			"spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: " + none,
			"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: " + none,
			"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: " + none}},
		"volume of old": {"volumes: [{name: a}, {name: v, gitRepo: {repository: r}}]",
			[]string{"spec.volumes[1].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"}},
		"claim": {
			"volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {resources: {limits: {storage: 100m}}}}}}]",
			[]string{
				`spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.limits[storage]: fractional byte value "100m" is invalid, must be an integer`}},
		"files": {
			"volumes: [{name: v, configMap: {name: m, items: [{key: a, path: a}, {key: b, path: a/b}, {key: c, path: ab}]}}]",
			[]string{`volume "v" (ConfigMap "m"): overlapping paths: "a/b" with "a"`}},
		"secret files": {
			"volumes: [{name: v, secret: {secretName: s, items: [{key: a, path: a/b/}, {key: b, path: a/b}]}}]",
			[]string{`volume "v" (Secret "s"): overlapping paths: "a/b" with "a/b"`}},
		"downward files": {"volumes: [{name: v, downwardAPI: {items: [{path: a}, {path: a}]}}]",
			[]string{`volume "v" (DownwardAPI): overlapping paths: "a" with "a"`}},
		"projected files": {
			"volumes: [{name: v, projected: {sources: [{}, {secret: {name: s, items: [{key: a, path: a}]}}, {serviceAccountToken: {path: a}}, {clusterTrustBundle: {name: bundle, path: a/b}}]}}]", []string{
				`volume "v" (Projected) has no sources provided`,
				`volume "v" (Projected): overlapping paths: "a" (ServiceAccountToken) with "a" (Secret "s")`,
				`volume "v" (Projected): overlapping paths: "a/b" (ClusterTrustBundle "bundle") with "a" (Secret "s")`,
				`volume "v" (Projected): overlapping paths: "a/b" (ClusterTrustBundle "bundle") with "a" (ServiceAccountToken)`}},
		"host aliases": {"hostAliases: [{ip: 10.0.0.1}, {ip: 10.0.0.1}]",
			[]string{`spec.hostAliases[1].ip: duplicate ip "10.0.0.1"`}},
		"secrets": {"imagePullSecrets: [{name: a}, {name: a}]",
			[]string{`spec.imagePullSecrets[1].name: duplicate name "a"`}},
		"no secret": {"imagePullSecrets: [{name: ''}]",
			[]string{`spec.imagePullSecrets[0].name: invalid empty name ""`}},
		"overhead": {"overhead: {memory: 1m}",
			[]string{`spec.overhead[memory]: fractional byte value "1m" is invalid, must be an integer`}},
		"memory": {"initContainers: [{name: a, resources: {requests: {memory: 1500m, cpu: 1500m}}}]",
			[]string{
				`spec.initContainers[0].resources.requests[memory]: fractional byte value "1500m" is invalid, must be an integer`}},
		"storage": {"containers: [{name: a, resources: {limits: {ephemeral-storage: 1m}}}]",
			[]string{
				`spec.containers[0].resources.limits[ephemeral-storage]: fractional byte value "1m" is invalid, must be an integer`}},
		"variables": {
			"containers: [{name: c, env: [{name: a, value: x}, {name: a, value: '$(a)y'}, {name: a, value: '$(a)'}]}]",
			[]string{
				`spec.containers[0].env[2]: hides previous definition of "a", which may be dropped when using apply`}},
		"host IP": {"containers: [{name: c, ports: [{containerPort: 80, hostIP: 10.0.0.1}]}]",
			[]string{
				"spec.containers[0].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol: HostIP:10.0.0.1}"}},
		"same port": {
			"initContainers: [{name: a, ports: [{containerPort: 80}]}]\ncontainers: [{name: c, ports: [{containerPort: 80}]}]", []string{"spec.containers[0].ports[0]: duplicate port definition with spec.initContainers[0].ports[0]"}},
		"port of host": {
			"containers: [{name: c, ports: [{containerPort: 80}, {containerPort: 80, hostPort: 8080}]}]",
			[]string{"spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]"}},
		"any address": {
			"containers: [{name: c, ports: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 80, hostIP: 10.0.0.1}]}]", []string{"spec.containers[0].ports[1]: dangerously ambiguous port definition with spec.containers[0].ports[0]"}},
		"other host port": {
			"containers: [{name: c, ports: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 81}]}]",
			nil},
		"port name": {
			"containers: [{name: c, ports: [{containerPort: 80, name: a}]}, {name: d, ports: [{containerPort: 81, name: a}]}]",
			[]string{
				`spec.containers[1].ports[0]: duplicate port name "a" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]`}},
		"grace": {"terminationGracePeriodSeconds: -1",
			[]string{
				"spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"}},
		"nameserver": {"dnsConfig: {nameservers: [010.0.0.1]}",
			[]string{`spec.dnsConfig.nameservers[0]: non-standard IP address "010.0.0.1" is invalid: use "10.0.0.1"`}},
		"alias": {"hostAliases: [{ip: '::0:1'}]",
			[]string{`spec.hostAliases[0].ip: IPv6 address "::0:1" should be in RFC 5952 canonical format ("::1")`}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := grouptest.Parse[corev1.PodSpec](t, c.spec)
			before := spec.DeepCopy()
			got := Spec(spec)
			if diff := cmp.Diff(before, spec); diff != "" {
				t.Errorf("warning changed the spec:\n%s", diff)
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("got  %s\nwant %s", got[i], c.want[i])
				}
			}
		})
	}
}

func TestTemplateWarnings(t *testing.T) {
	template := grouptest.Parse[corev1.PodTemplateSpec](t, `
metadata:
  annotations:
    scheduler.alpha.kubernetes.io/critical-pod: ""
    seccomp.security.alpha.kubernetes.io/pod: runtime/default
    container.seccomp.security.alpha.kubernetes.io/c: runtime/default
    container.apparmor.security.beta.kubernetes.io/c: runtime/default
    container.apparmor.security.beta.kubernetes.io/other: runtime/default
spec: {containers: [{name: c}], terminationGracePeriodSeconds: -1}
`)
	const (
		at      = "spec.template.metadata.annotations"
		grace   = "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
		seccomp = `: non-functional in v1.27+; use the "seccompProfile" field instead`
	)
	critical := at +
		`[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the "priorityClassName" field instead`
	want := []string{critical,
		at + "[seccomp.security.alpha.kubernetes.io/pod]" + seccomp,
		at + "[container.seccomp.security.alpha.kubernetes.io/c]" + seccomp,
		at +
			`[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the "appArmorProfile" field instead`,
		grace}
	if diff := cmp.Diff(want, Template("a", template, "spec", "template")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	template.Spec.SecurityContext = &corev1.PodSecurityContext{
		SeccompProfile:  &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault},
	}
	template.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
	if diff := cmp.Diff([]string{critical, grace}, Template("a", template, "spec", "template")); diff != "" {
		t.Errorf("with the fields in their place (-want +got):\n%s", diff)
	}
}

func TestNameWarnings(t *testing.T) {
	for name, want := range map[string]int{"a": 0, "": 0, "a.b": 1} {
		p := &corev1.Pod{}
		p.Name = name
		pod, workload := Pod(p), Template(name, &corev1.PodTemplateSpec{}, "spec", "template")
		if len(pod) != want || len(workload) != want {
			t.Errorf("%q: %q and %q", name, pod, workload)
			continue
		}
		if want == 1 &&
			(!strings.HasPrefix(pod[0],
				"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]") ||
				!strings.HasPrefix(workload[0],
					"metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]")) {
			t.Errorf("%q and %q", pod, workload)
		}
	}
}
