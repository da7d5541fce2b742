package podtemplate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

// base is a valid container, for tests that are not about containers.
const base = "containers: [{name: a, image: i}]\n"

func TestValidateSpec(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"minimal": {base, nil},
		"everything at once": {`
serviceAccountName: sa
nodeSelector: {disk: ssd}
hostAliases: [{ip: 10.0.0.1, hostnames: [a.example]}]
imagePullSecrets: [{name: pull}]
tolerations: [{operator: Exists}, {key: k, value: v, effect: NoExecute, tolerationSeconds: 5}]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}], matchFields: [{key: metadata.name, operator: In, values: [n]}]}]}
    preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: cores, operator: Gt, values: ["4"]}]}}]
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm: {topologyKey: zone, labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [pod-template-hash]}}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 2, labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [pod-template-hash]}]
securityContext: {runAsUser: 0, fsGroup: 1, sysctls: [{name: net.core.somaxconn, value: "1"}], seccompProfile: {type: RuntimeDefault}}
readinessGates: [{conditionType: www.example.com/feature-1}]
dnsConfig: {nameservers: [1.1.1.1], searches: [a.b, "."], options: [{name: ndots, value: "2"}]}
volumes:
- {name: e, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
- {name: c, configMap: {name: cm, items: [{key: k, path: a/b, mode: 256}]}}
- {name: s, secret: {secretName: s, optional: true}}
- {name: d, downwardAPI: {items: [{path: l, fieldRef: {fieldPath: "metadata.labels['a']"}}, {path: m, resourceFieldRef: {containerName: a, resource: limits.memory, divisor: 1Mi}}]}}
- {name: p, projected: {sources: [{serviceAccountToken: {path: token}}, {configMap: {name: cm}}]}}
- {name: h, hostPath: {path: /var/run, type: Directory}}
- {name: v, persistentVolumeClaim: {claimName: claim}}
initContainers:
- {name: init, image: i, restartPolicy: Always, startupProbe: {tcpSocket: {port: 80}}}
containers:
- name: a
  image: registry:5000/i@sha256:0
  command: [/a]
  env: [{name: A.b, value: c}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}, {name: C, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}]
  envFrom: [{prefix: P_, configMapRef: {name: cm}}]
  ports: [{name: web, containerPort: 80, hostPort: 8080}, {containerPort: 53, protocol: UDP}]
  resources: {requests: {cpu: 1, memory: 1Mi, example.com/gpu: 1}, limits: {cpu: 2, memory: 1Gi, example.com/gpu: 1}}
  volumeMounts: [{name: e, mountPath: /e, subPath: x}, {name: c, mountPath: /c, readOnly: true}]
  livenessProbe: {exec: {command: ["true"]}}
  lifecycle: {preStop: {sleep: {seconds: 5}}}
  securityContext: {capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false}
`, nil},

		"no containers": {`{}`, []string{grouptest.Missing + "spec.containers"}},
		"no name":       {`containers: [{image: i}]`, []string{grouptest.Missing + "spec.containers[0].name"}},
		"bad name": {`containers: [{name: A_b, image: i}]`,
			[]string{grouptest.Invalid + "spec.containers[0].name"}},
		"same name": {`{containers: [{name: a, image: i}], initContainers: [{name: a, image: i}]}`,
			[]string{grouptest.Duplicate + "spec.initContainers[0].name"}},
		"no image":         {`containers: [{name: a}]`, []string{grouptest.Missing + "spec.containers[0].image"}},
		"image with space": {`containers: [{name: a, image: " i"}]`, nil},
		"pull policy": {`containers: [{name: a, image: i, imagePullPolicy: Sometimes}]`,
			[]string{grouptest.Unknown + "spec.containers[0].imagePullPolicy"}},
		"message policy": {`containers: [{name: a, image: i, terminationMessagePolicy: x}]`,
			[]string{grouptest.Unknown + "spec.containers[0].terminationMessagePolicy"}},
		"container restart": {
			`containers: [{name: a, image: i, restartPolicy: Always}, {name: b, image: i, restartPolicy: Never}, {name: c, image: i, restartPolicy: OnFailure}]`, nil},
		"container restart bad": {`containers: [{name: a, image: i, restartPolicy: Maybe}]`,
			[]string{grouptest.Unknown + "spec.containers[0].restartPolicy"}},
		"restart rules": {base + `initContainers: [{name: b, image: i, restartPolicy: Never, restartPolicyRules: [
  {action: Restart, exitCodes: {operator: In, values: [42]}}, {action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}]}]`, nil},
		"restart rules alone": {
			`containers: [{name: a, image: i, restartPolicyRules: [{action: Restart, exitCodes: {operator: In}}]}]`,
			[]string{grouptest.Missing + "spec.containers[0].restartPolicy"}},
		"restart rules bad": {
			`containers: [{name: a, image: i, restartPolicy: Never, restartPolicyRules: [{action: Stop, exitCodes: {operator: Near}}, {action: Restart}]}]`,
			[]string{grouptest.Unknown + "spec.containers[0].restartPolicyRules[0].action",
				grouptest.Unknown + "spec.containers[0].restartPolicyRules[0].exitCodes.operator",
				grouptest.Missing + "spec.containers[0].restartPolicyRules[1].exitCodes"}},
		"too many restart rules": {
			`containers: [{name: a, image: i, restartPolicy: Never, restartPolicyRules: [` +
				strings.Repeat("{action: Restart, exitCodes: {operator: In}},", 21) + `]}]`,
			[]string{grouptest.TooMany + "spec.containers[0].restartPolicyRules"}},
		"init probe": {base + `initContainers: [{name: b, image: i, readinessProbe: {exec: {command: [x]}}}]`,
			[]string{grouptest.Forbidden + "spec.initContainers[0].readinessProbe"}},
		"init restart policy": {base + `initContainers: [{name: b, image: i, restartPolicy: Never}]`, nil},
		"several at once": {
			`{containers: [{name: a, image: i, ports: [{containerPort: 70000, protocol: X}]}], restartPolicy: Maybe}`,
			[]string{grouptest.Invalid + "spec.containers[0].ports[0].containerPort",
				grouptest.Unknown + "spec.containers[0].ports[0].protocol", grouptest.Unknown + "spec.restartPolicy"}},

		"no port": {`containers: [{name: a, image: i, ports: [{name: p}]}]`,
			[]string{grouptest.Missing + "spec.containers[0].ports[0].containerPort"}},
		"port name": {`containers: [{name: a, image: i, ports: [{containerPort: 1, name: much-too-long-name}]}]`,
			[]string{grouptest.Invalid + "spec.containers[0].ports[0].name"}},
		"same port name": {
			`containers: [{name: a, image: i, ports: [{containerPort: 1, name: p}, {containerPort: 2, name: p}]}]`,
			[]string{grouptest.Duplicate + "spec.containers[0].ports[1].name"}},
		"same host port": {
			`containers: [{name: a, image: i, ports: [{containerPort: 1, hostPort: 5}]}, {name: b, image: i, ports: [{containerPort: 2, hostPort: 5}]}]`, []string{grouptest.Duplicate + "spec.containers[1].ports[0].hostPort"}},
		"host network": {
			`{hostNetwork: true, containers: [{name: a, image: i, ports: [{containerPort: 1, hostPort: 5}]}]}`,
			[]string{grouptest.Invalid + "spec.containers[0].ports[0].hostPort"}},
		"host IP": {`containers: [{name: a, image: i, ports: [{containerPort: 1, hostIP: here}]}]`, nil},
		"env name": {`containers: [{name: a, image: i, env: [{name: "a=b"}, {value: v}]}]`,
			[]string{grouptest.Invalid + "spec.containers[0].env[0].name",
				grouptest.Missing + "spec.containers[0].env[1].name"}},
		"env both": {
			`containers: [{name: a, image: i, env: [{name: a, value: b, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]`, []string{grouptest.Invalid + "spec.containers[0].env[0].valueFrom"}},
		"env none": {`containers: [{name: a, image: i, env: [{name: a, valueFrom: {}}]}]`,
			[]string{grouptest.Invalid + "spec.containers[0].env[0].valueFrom"}},
		"env field": {
			`containers: [{name: a, image: i, env: [{name: a, valueFrom: {fieldRef: {fieldPath: spec.volumes}}}]}]`,
			[]string{grouptest.Invalid + "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath"}},
		"env labels": {
			`containers: [{name: a, image: i, env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]}]`,
			[]string{grouptest.Unknown + "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath"}},
		"env resource": {
			`containers: [{name: a, image: i, env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}]}]`, []string{grouptest.Unknown + "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource"}},
		"env divisor": {
			`containers: [{name: a, image: i, env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1Mi}}}]}]`, []string{grouptest.Invalid + "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor"}},
		"env key": {
			`containers: [{name: a, image: i, env: [{name: a, valueFrom: {configMapKeyRef: {name: c}}}]}]`,
			[]string{grouptest.Missing + "spec.containers[0].env[0].valueFrom.configMapKeyRef.key"}},
		"env file": {
			`{volumes: [{name: e, emptyDir: {}}], containers: [{name: a, image: i, env: [{name: a, valueFrom: {fileKeyRef: {volumeName: e, path: a/b.env, key: A}}}]}]}`, nil},
		"env file empty": {`containers: [{name: a, image: i, env: [{name: a, valueFrom: {fileKeyRef: {}}}]}]`, []string{
			grouptest.Missing + "spec.containers[0].env[0].valueFrom.fileKeyRef.key",
			grouptest.Missing + "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName",
			grouptest.Missing + "spec.containers[0].env[0].valueFrom.fileKeyRef.path",
			grouptest.NotFound + "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName"}},
		"env file elsewhere": {
			`{volumes: [{name: h, hostPath: {path: /}}], containers: [{name: a, image: i, env: [{name: a, valueFrom: {fileKeyRef: {volumeName: h, path: ../b, key: A}}}]}]}`, []string{
				grouptest.Invalid + "spec.containers[0].env[0].valueFrom.fileKeyRef.path",
				grouptest.Invalid + "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName"}},
		"env from": {`containers: [{name: a, image: i, envFrom: [{}, {secretRef: {}}]}]`,
			[]string{grouptest.Invalid + "spec.containers[0].envFrom",
				grouptest.Missing + "spec.containers[0].envFrom[1].secretRef.name"}},
		"request > limit": {`containers: [{name: a, image: i, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]`,
			[]string{grouptest.Invalid + "spec.containers[0].resources.requests"}},
		"negative": {`containers: [{name: a, image: i, resources: {limits: {memory: "-1"}}}]`,
			[]string{grouptest.Invalid + "spec.containers[0].resources.limits[memory]"}},
		"unknown": {`containers: [{name: a, image: i, resources: {requests: {bananas: 1}}}]`,
			[]string{grouptest.Invalid + "spec.containers[0].resources.requests[bananas]",
				grouptest.Invalid + "spec.containers[0].resources.requests[bananas]"}},
		"half a device": {
			`containers: [{name: a, image: i, resources: {requests: {a.b/c: 500m}, limits: {a.b/c: 500m}}}]`,
			[]string{grouptest.Invalid + "spec.containers[0].resources.limits[a.b/c]",
				grouptest.Invalid + "spec.containers[0].resources.requests[a.b/c]"}},
		"device no limit": {`containers: [{name: a, image: i, resources: {requests: {a.b/c: 1}}}]`,
			[]string{grouptest.Missing + "spec.containers[0].resources.limits"}},
		"only huge pages": {
			`containers: [{name: a, image: i, resources: {requests: {hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 2Mi}}}]`, []string{grouptest.Forbidden + "spec.containers[0].resources"}},

		"two handlers": {
			`containers: [{name: a, image: i, livenessProbe: {exec: {command: [x]}, tcpSocket: {port: 1}}}]`,
			[]string{grouptest.Forbidden + "spec.containers[0].livenessProbe.tcpSocket"}},
		"no handler": {`containers: [{name: a, image: i, startupProbe: {}}]`,
			[]string{grouptest.Missing + "spec.containers[0].startupProbe"}},
		"probe numbers": {
			`containers: [{name: a, image: i, livenessProbe: {tcpSocket: {port: 0}, periodSeconds: -1, successThreshold: 2}}]`, []string{grouptest.Invalid + "spec.containers[0].livenessProbe.periodSeconds", grouptest.Invalid + "spec.containers[0].livenessProbe.successThreshold", grouptest.Invalid + "spec.containers[0].livenessProbe.tcpSocket.port"}},
		"probe scheme": {
			`containers: [{name: a, image: i, readinessProbe: {httpGet: {port: x, scheme: FTP, httpHeaders: [{name: "a b", value: c}]}, terminationGracePeriodSeconds: 1}}]`, []string{grouptest.Invalid + "spec.containers[0].readinessProbe.httpGet.httpHeaders", grouptest.Invalid + "spec.containers[0].readinessProbe.terminationGracePeriodSeconds", grouptest.Unknown + "spec.containers[0].readinessProbe.httpGet.scheme"}},
		"long sleep": {`containers: [{name: a, image: i, lifecycle: {preStop: {sleep: {seconds: 31}}}}]`,
			[]string{grouptest.Invalid + "spec.containers[0].lifecycle.preStop.sleep"}},
		"empty command": {`containers: [{name: a, image: i, lifecycle: {postStart: {exec: {}}}}]`,
			[]string{grouptest.Missing + "spec.containers[0].lifecycle.postStart.exec.command"}},
		"privileges": {
			`containers: [{name: a, image: i, securityContext: {privileged: true, allowPrivilegeEscalation: false, runAsUser: -1}}]`, []string{grouptest.Invalid + "spec.containers[0].securityContext", grouptest.Invalid + "spec.containers[0].securityContext.runAsUser"}},
		"seccomp": {`containers: [{name: a, image: i, securityContext: {seccompProfile: {type: Localhost}}}]`,
			[]string{grouptest.Missing + "spec.containers[0].securityContext.seccompProfile.localhostProfile"}},
		"proc mount": {`containers: [{name: a, image: i, securityContext: {procMount: Unmasked}}]`,
			[]string{grouptest.Invalid + "spec.containers[0].securityContext.procMount"}},
		"mount of nothing": {`containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v}]}]`,
			[]string{grouptest.NotFound + "spec.containers[0].volumeMounts[0].name"}},
		"mount paths": {
			"volumes: [{name: v}]\n" +
				`containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /v}, {name: v}]}]`, []string{grouptest.Invalid + "spec.containers[0].volumeMounts[1].mountPath", grouptest.Missing + "spec.containers[0].volumeMounts[2].mountPath"}},
		"sub path": {
			"volumes: [{name: v}]\n" +
				`containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v, subPath: ../x}, {name: v, mountPath: /w, subPath: /x}]}]`, []string{grouptest.Invalid + "spec.containers[0].volumeMounts.subPath", grouptest.Invalid + "spec.containers[0].volumeMounts.subPath"}},
		"propagation": {
			"volumes: [{name: v}]\n" +
				`containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]}]`, []string{grouptest.Forbidden + "spec.containers[0].volumeMounts.mountPropagation"}},
		"device of a file": {
			"volumes: [{name: v}]\n" + `containers: [{name: a, image: i, volumeDevices: [{name: v, devicePath: /d}]}]`,
			[]string{grouptest.Invalid + "spec.containers[0].volumeDevices[0].name"}},
		"same volume": {base + `volumes: [{name: v}, {name: v}]`,
			[]string{grouptest.Duplicate + "spec.volumes[1].name"}},
		"two sources": {base + `volumes: [{name: v, emptyDir: {}, hostPath: {path: /}}]`,
			[]string{grouptest.Forbidden + "spec.volumes[0].hostPath"}},
		"volume sources": {
			base +
				`volumes: [{name: a, configMap: {defaultMode: 512}}, {name: b, secret: {secretName: s, items: [{key: k, path: ../x}]}}, {name: c, hostPath: {path: "a/../b", type: Tape}}]`, []string{grouptest.Invalid + "spec.volumes[0].configMap.defaultMode", grouptest.Invalid + "spec.volumes[1].secret.items[0].path", grouptest.Invalid + "spec.volumes[2].hostPath.path", grouptest.Missing + "spec.volumes[0].configMap.name", grouptest.Unknown + "spec.volumes[2].hostPath.type"}},
		"projected": {
			base +
				`volumes: [{name: p, projected: {sources: [{}, {serviceAccountToken: {path: t, expirationSeconds: 1}}, {configMap: {name: c, items: [{key: k, path: t}]}}]}}]`, []string{grouptest.Invalid + "spec.volumes[0].projected.sources[1].serviceAccountToken.expirationSeconds"}},
		"downward": {
			base +
				`volumes: [{name: d, downwardAPI: {items: [{path: a}, {path: b, fieldRef: {fieldPath: spec.nodeName}}, {path: c, resourceFieldRef: {resource: limits.cpu}}]}}]`, []string{grouptest.Missing + "spec.volumes[0].downwardAPI", grouptest.Missing + "spec.volumes[0].downwardAPI.resourceFieldRef.containerName", grouptest.Unknown + "spec.volumes[0].downwardAPI.fieldRef.fieldPath"}},
		"medium": {base + `volumes: [{name: e, emptyDir: {medium: Tape, sizeLimit: "-1"}}]`,
			[]string{grouptest.Forbidden + "spec.volumes[0].emptyDir.sizeLimit"}},
		"git": {base + `volumes: [{name: e, gitRepo: {repository: r}}]`,
			[]string{grouptest.Forbidden + "spec.volumes[0].gitRepo"}},
		"ephemeral volume": {base + `volumes: [{name: e, ephemeral: {volumeClaimTemplate: {spec: {}}}}]`,
			[]string{grouptest.Missing + "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes",
				grouptest.Missing + "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]"}},
		"names": {
			base +
				"nodeName: A\nhostname: a.b\nsubdomain: A\nserviceAccountName: A\npriorityClassName: A\nruntimeClassName: ''\nschedulerName: A b", []string{grouptest.Invalid + "spec.hostname", grouptest.Invalid + "spec.nodeName", grouptest.Invalid + "spec.priorityClassName", grouptest.Invalid + "spec.runtimeClassName", grouptest.Invalid + "spec.serviceAccountName", grouptest.Invalid + "spec.subdomain"}},
		"times": {base + "activeDeadlineSeconds: 0\nterminationGracePeriodSeconds: -1",
			[]string{grouptest.Invalid + "spec.activeDeadlineSeconds"}},
		"dns none": {base + "dnsPolicy: None", []string{grouptest.Missing + "spec.dnsConfig"}},
		"dns config": {
			base +
				"dnsPolicy: Mine\ndnsConfig: {nameservers: [x, 1.1.1.1, 1.1.1.2, 1.1.1.3], searches: [a b], options: [{}]}", []string{grouptest.Invalid + "spec.dnsConfig.nameservers[0]", grouptest.Invalid + "spec.dnsConfig.searches[0]", grouptest.Missing + "spec.dnsConfig.options[0]", grouptest.Invalid + "spec.dnsConfig.nameservers", grouptest.Unknown + "spec.dnsPolicy"}},
		"host aliases": {base + "hostAliases: [{ip: x, hostnames: [A]}]",
			[]string{grouptest.Invalid + "spec.hostAliases[0].hostnames[0]",
				grouptest.Invalid + "spec.hostAliases[0].ip"}},
		"gates": {base + "readinessGates: [{conditionType: a b}]\nschedulingGates: [{name: g}, {name: g}]",
			[]string{grouptest.Duplicate + "spec.schedulingGates[1]",
				grouptest.Invalid + "spec.readinessGates[0].conditionType"}},
		"node selector": {base + `nodeSelector: {a: "b c"}`, []string{grouptest.Invalid + "spec.nodeSelector"}},
		"tolerations": {
			base +
				"tolerations: [{value: v}, {key: k, operator: Exists, value: v}, {key: k, operator: Near}, {key: k, effect: Nothing}, {key: k, effect: NoSchedule, tolerationSeconds: 1}]", []string{grouptest.Invalid + "spec.tolerations[0].operator", grouptest.Invalid + "spec.tolerations[1].operator", grouptest.Invalid + "spec.tolerations[4].effect", grouptest.Unknown + "spec.tolerations[2].operator", grouptest.Unknown + "spec.tolerations[3].effect"}},
		"spread": {
			base +
				"topologySpreadConstraints: [{maxSkew: 0, whenUnsatisfiable: Cry}, {maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway, minDomains: 1}, {maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway, matchLabelKeys: [a]}]", []string{grouptest.Duplicate + "spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}", grouptest.Forbidden + "spec.topologySpreadConstraints[2].matchLabelKeys", grouptest.Invalid + "spec.topologySpreadConstraints[0].maxSkew", grouptest.Invalid + "spec.topologySpreadConstraints[1].minDomains", grouptest.Missing + "spec.topologySpreadConstraints[0].topologyKey", grouptest.Unknown + "spec.topologySpreadConstraints[0].whenUnsatisfiable"}},
		"node affinity": {
			base +
				"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}, preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101, preference: {matchExpressions: [{key: k, operator: In}, {key: k, operator: Gt, values: [x]}, {key: k, operator: Is}], matchFields: [{key: spec.x, operator: In, values: [a]}]}}]}}", []string{grouptest.Invalid + "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[2].operator", grouptest.Invalid + "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0].key", grouptest.Invalid + "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight", grouptest.Missing + "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values", grouptest.Missing + "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"}},
		"pod affinity": {
			base +
				"affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{namespaces: [A]}]}, podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, podAffinityTerm: {topologyKey: z}}]}}", []string{grouptest.Invalid + "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespace", grouptest.Invalid + "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight", grouptest.Missing + "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey", grouptest.Invalid + "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey", grouptest.Invalid + "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey"}},
		"shared namespaces": {base + "hostPID: true\nshareProcessNamespace: true\nhostUsers: false",
			[]string{grouptest.Forbidden + "spec.HostPID", grouptest.Invalid + "spec.shareProcessNamespace"}},
		"pod security": {
			base +
				"hostNetwork: true\nsecurityContext: {runAsGroup: -1, fsGroup: -1, supplementalGroups: [-1], fsGroupChangePolicy: x, sysctls: [{name: net.x, value: y}, {name: A}]}", []string{grouptest.Invalid + "spec.securityContext.fsGroup", grouptest.Invalid + "spec.securityContext.runAsGroup", grouptest.Invalid + "spec.securityContext.supplementalGroups[0]", grouptest.Invalid + "spec.securityContext.sysctls[0].name", grouptest.Invalid + "spec.securityContext.sysctls[1].name", grouptest.Unknown + "spec.securityContext.fsGroupChangePolicy"}},
		"os": {base + "os: {name: plan9}", []string{grouptest.Unknown + "spec.os"}},
		"claims": {
			`{resourceClaims: [{name: c}], containers: [{name: a, image: i, resources: {claims: [{name: d}]}}]}`,
			[]string{grouptest.Invalid + "spec.resourceClaims[0]",
				grouptest.NotFound + "spec.containers[0].resources.claims[0]"}},
		"pod resources": {base + "resources: {limits: {ephemeral-storage: 1Gi}}",
			[]string{grouptest.Unknown + "spec.resources.limits[ephemeral-storage]"}},
		"ephemeral": {
			base +
				"ephemeralContainers: [{name: a, image: i}, {name: e, image: i, ports: [{containerPort: 1}], targetContainerName: z}]", []string{grouptest.Duplicate + "spec.ephemeralContainers[0].name", grouptest.Forbidden + "spec.ephemeralContainers[1].ports", grouptest.NotFound + "spec.ephemeralContainers[1].targetContainerName"}},
		"no ports but said": {base + "ephemeralContainers: [{name: e, image: i, ports: []}]",
			[]string{grouptest.Forbidden + "spec.ephemeralContainers[0].ports"}},
		"free spreading": {
			base +
				"topologySpreadConstraints: [{maxSkew: 1, topologyKey: 'Free form!', whenUnsatisfiable: ScheduleAnyway}]", nil},
		"merged keys": {
			base +
				"topologySpreadConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway, matchLabelKeys: [a], labelSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: Exists}]}}]", []string{grouptest.Invalid + "spec.topologySpreadConstraints[0][0]"}},
		"refused volume": {
			"volumes: [{name: v, hostPath: {}}]\n" +
				`containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v}]}]`,
			[]string{grouptest.Missing + "spec.volumes[0].hostPath.path",
				grouptest.NotFound + "spec.containers[0].volumeMounts[0].name"}},
		"trust bundles": {
			base +
				`volumes: [{name: p, projected: {sources: [{clusterTrustBundle: {name: "example.com:s:b", path: a}}, {clusterTrustBundle: {name: b, path: b/c}}, {clusterTrustBundle: {signerName: example.com/s, path: d}}, {clusterTrustBundle: {signerName: example.com/s, labelSelector: {}, optional: true, path: e}}]}}]`, nil},
		"wrong bundles": {
			base +
				`volumes: [{name: p, projected: {sources: [{clusterTrustBundle: {path: a}}, {clusterTrustBundle: {name: b, signerName: example.com/s, path: b}}, {clusterTrustBundle: {name: b, labelSelector: {}, path: c}}, {clusterTrustBundle: {name: "a/b:c", path: d}}, {clusterTrustBundle: {signerName: s, labelSelector: {matchLabels: {"a b": c}}, path: ..e}}, {clusterTrustBundle: {name: b, path: a}}]}}]`, []string{
				grouptest.Missing + "spec.volumes[0].projected.sources[0].clusterTrustBundle",
				grouptest.Invalid + "spec.volumes[0].projected.sources[1].clusterTrustBundle",
				grouptest.Invalid + "spec.volumes[0].projected.sources[2].clusterTrustBundle.labelSelector",
				grouptest.Invalid + "spec.volumes[0].projected.sources[3].clusterTrustBundle.name",
				grouptest.Invalid + "spec.volumes[0].projected.sources[4].clusterTrustBundle.signerName",
				grouptest.Invalid + "spec.volumes[0].projected.sources[4].clusterTrustBundle.labelSelector.matchLabels",
				grouptest.Invalid + "spec.volumes[0].projected.sources[4].clusterTrustBundle.path",
				grouptest.Invalid + "spec.volumes[0].projected",
			}},
		"empty bundles": {
			base +
				`volumes: [{name: p, projected: {sources: [{clusterTrustBundle: {name: "", path: a}}, {clusterTrustBundle: {signerName: "", path: ""}}]}}]`, []string{
				grouptest.Missing + "spec.volumes[0].projected.sources[0].clusterTrustBundle.name",
				grouptest.Invalid + "spec.volumes[0].projected.sources[0].clusterTrustBundle.name",
				grouptest.Missing + "spec.volumes[0].projected.sources[1].clusterTrustBundle.signerName",
				grouptest.Missing + "spec.volumes[0].projected.sources[1].clusterTrustBundle.signerName",
				grouptest.Missing + "spec.volumes[0].projected.sources[1].clusterTrustBundle.path",
			}},
		"certificates": {
			base +
				`volumes: [{name: p, projected: {sources: [{podCertificate: {signerName: example.com/s, keyType: ED25519, credentialBundlePath: a}}, {podCertificate: {signerName: example.com/s, keyType: RSA3072, maxExpirationSeconds: 7862400, keyPath: b, certificateChainPath: c, userAnnotations: {example.com/a: b}}}, {podCertificate: {signerName: kubernetes.io/s, keyType: ECDSAP256, maxExpirationSeconds: 86400, keyPath: d}}]}}]`, nil},
		"wrong certificates": {
			base +
				`volumes: [{name: p, projected: {sources: [{podCertificate: {signerName: s, keyType: RSA2048}}, {podCertificate: {signerName: example.com/s, keyType: ED25519, maxExpirationSeconds: 3599, keyPath: ../k, userAnnotations: {a: b}}}, {podCertificate: {signerName: example.com/s, keyType: ED25519, maxExpirationSeconds: 7862401, keyPath: a, certificateChainPath: a}}, {podCertificate: {signerName: a.kubernetes.io/s, keyType: ED25519, maxExpirationSeconds: 86401, keyPath: b}}]}}]`, []string{
				grouptest.Invalid + "spec.volumes[0].projected.sources[0].podCertificate.signerName",
				grouptest.Unknown + "spec.volumes[0].projected.sources[0].podCertificate.keyType",
				grouptest.Missing + "spec.volumes[0].projected.sources[0].podCertificate",
				grouptest.Invalid + "spec.volumes[0].projected.sources[1].podCertificate.maxExpirationSeconds",
				grouptest.Invalid + "spec.volumes[0].projected.sources[1].podCertificate.keyPath",
				grouptest.Invalid + "spec.volumes[0].projected.sources[1].podCertificate.userAnnotations",
				grouptest.Invalid + "spec.volumes[0].projected.sources[2].podCertificate.maxExpirationSeconds",
				grouptest.Invalid + "spec.volumes[0].projected",
				grouptest.Invalid + "spec.volumes[0].projected.sources[3].podCertificate.maxExpirationSeconds",
			}},
		"both sources": {
			base + `volumes: [{name: p, projected: {sources: [{}, {secret: {name: s}, configMap: {name: c}}]}}]`,
			[]string{grouptest.Forbidden + "spec.volumes[0].projected.sources[1]"}},
		"same path": {
			base +
				`volumes: [{name: p, projected: {sources: [{secret: {name: s, items: [{key: k, path: t}]}}, {configMap: {name: c, items: [{key: k, path: t}]}}]}}]`, []string{grouptest.Invalid + "spec.volumes[0].projected"}},
		"parts of pages": {`containers: [{name: a, image: i, resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi}}}]`,
			[]string{grouptest.Invalid + "spec.containers[0].resources.limits[hugepages-2Mi]"}},
		"overhead": {base + "overhead: {foo: 1}",
			[]string{grouptest.Invalid + "spec.overhead.limits[foo]", grouptest.Invalid + "spec.overhead.limits[foo]"}},
		"more than the pod": {
			`{resources: {requests: {cpu: 1m}, limits: {memory: 1}}, containers: [{name: a, image: i, resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}}]}`, []string{grouptest.Invalid + "spec.resources.requests[cpu]", grouptest.Invalid + "spec.resources.containers[0][memory].limits"}},
		"empty key names": {
			`containers: [{name: a, image: i, env: [{name: a, valueFrom: {secretKeyRef: {key: k}}}]}]`,
			[]string{grouptest.Invalid + "spec.containers[0].env[0].valueFrom.secretKeyRef.name"}},
		"no names for pods": {`containers: [{image: i}, {image: i}]`,
			[]string{grouptest.Missing + "spec.containers[0].name", grouptest.Missing + "spec.containers[1].name",
				grouptest.Duplicate + "spec.containers[1].name"}},
		"mounted devices": {
			"volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n" +
				`containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v}], volumeDevices: [{name: v, devicePath: /v}]}]`, []string{grouptest.Invalid + "spec.containers[0].volumeMounts[0].name", grouptest.Invalid + "spec.containers[0].volumeMounts[0].mountPath", grouptest.Invalid + "spec.containers[0].volumeDevices[0].name", grouptest.Invalid + "spec.containers[0].volumeDevices[0].devicePath"}},
		"restart to resize": {
			`{restartPolicy: Never, containers: [{name: a, image: i, resizePolicy: [{resourceName: gpu, restartPolicy: RestartContainer}]}]}`, []string{grouptest.Unknown + "spec.containers[0].resizePolicy", grouptest.Invalid + "spec.containers[0].resizePolicy"}},
		"not offered": {base + "schedulingGroup: {podGroupName: g}",
			[]string{grouptest.Forbidden + "spec.schedulingGroup"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := parse(t, c.spec)
			DefaultSpec(spec)
			grouptest.WantErrors(t, ValidateSpec(spec, field.NewPath("spec")), c.want...)
		})
	}
}

func TestValidateDoesNotChange(t *testing.T) {
	spec := parse(t, base+"volumes: [{name: v}]")
	DefaultSpec(spec)
	before := spec.DeepCopy()
	ValidateSpec(spec, field.NewPath("spec"))
	if diff := cmp.Diff(before, spec); diff != "" {
		t.Errorf("validation changed the spec:\n%s", diff)
	}
}
