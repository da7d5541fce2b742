package core

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestNodeRow(t *testing.T) {
	node := func(text string) *corev1.Node {
		n := grouptest.Parse[corev1.Node](t, text)
		n.Name, n.CreationTimestamp = "n1", grouptest.Ago(49*time.Hour)
		return n
	}
	grouptest.WantRow(t, nodes(), node(`
metadata: {labels: {node-role.kubernetes.io/worker: "", node-role.kubernetes.io/control-plane: "true", kubernetes.io/role: edge}}
spec: {unschedulable: true}
status:
  conditions: [{type: MemoryPressure, status: "False"}, {type: Ready, status: "True"}]
  addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 10.0.0.1}]
  nodeInfo: {kubeletVersion: v1.37.2, osImage: Debian, kernelVersion: "6.18", containerRuntimeVersion: containerd://2.4.2, machineID: "", systemUUID: "", bootID: "", kubeProxyVersion: "", operatingSystem: linux, architecture: amd64}
`), "n1", "Ready,SchedulingDisabled", "control-plane,edge,worker", "2d1h", "v1.37.2", "10.0.0.1", "<none>", "Debian",
		"6.18", "containerd://2.4.2")
	grouptest.WantRow(t, nodes(), node(`status: {conditions: [{type: Ready, status: Unknown}]}`),
		"n1", "NotReady", "<none>", "2d1h", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>")
	grouptest.WantRow(t, nodes(), node(`{}`),
		"n1", "Unknown", "<none>", "2d1h", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>")
}

func TestSmallRows(t *testing.T) {
	cm := grouptest.Parse[corev1.ConfigMap](t, `{metadata: {name: a}, data: {a: b}, binaryData: {c: AA==}}`)
	cm.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, configMaps(), cm, "a", int64(2), "60s")

	secret := grouptest.Parse[corev1.Secret](t, `{metadata: {name: a}, type: Opaque, data: {c: AA==}}`)
	grouptest.WantRow(t, secrets(), secret, "a", "Opaque", int64(1), "<unknown>")

	sa := grouptest.Parse[corev1.ServiceAccount](t, `{metadata: {name: a}, secrets: [{name: b}]}`)
	grouptest.WantRow(t, serviceAccounts(), sa, "a", int64(1), "<unknown>")

	ns := grouptest.Parse[corev1.Namespace](t, `{metadata: {name: a}, status: {phase: Terminating}}`)
	grouptest.WantRow(t, namespaces(), ns, "a", "Terminating", "<unknown>")

	template := grouptest.Parse[corev1.PodTemplate](t,
		`{metadata: {name: a}, template: {metadata: {labels: {b: c}}, spec: {containers: [{name: x, image: i}, {name: z, image: j}]}}}`)
	grouptest.WantRow(t, podTemplates(), template, "a", "x,z", "i,j", "b=c", "<unknown>")
}

func TestEventRow(t *testing.T) {
	e := grouptest.Parse[corev1.Event](t, `
metadata: {name: e}
type: Warning
reason: BackOff
involvedObject: {kind: Pod, name: p, fieldPath: "spec.containers{a}"}
source: {component: kubelet, host: n1}
message: "back-off restarting\n"
count: 3
`)
	e.FirstTimestamp, e.LastTimestamp = grouptest.Ago(10*time.Minute), grouptest.Ago(5*time.Second)
	grouptest.WantRow(t, events(), e, "5s", "Warning", "BackOff", "pod/p", "spec.containers{a}", "kubelet, n1",
		"back-off restarting", "10m", int64(3), "e")

	e = grouptest.Parse[corev1.Event](t, `
metadata: {name: e}
type: Normal
reason: Scheduled
involvedObject: {kind: Pod, name: p}
reportingComponent: default-scheduler
reportingInstance: s1
message: assigned
`)
	e.EventTime.Time = grouptest.Ago(time.Minute).Time
	grouptest.WantRow(t, events(), e, "60s", "Normal", "Scheduled", "pod/p", "", "default-scheduler, s1", "assigned",
		"60s", int64(1), "e")
}
