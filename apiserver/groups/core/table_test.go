package core

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/resource"
)

// wantRow compares the cells of an object, and their number with that of the columns.
func wantRow[T any](t *testing.T, r resource.Resource, obj *T, want []any) {
	t.Helper()
	kind := r.(*resource.Kind[T])
	got := kind.Row(obj, now)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cells differ (-want +got):\n%s", diff)
	}
	if len(got) != len(kind.Columns) {
		t.Errorf("%d cells for %d columns", len(got), len(kind.Columns))
	}
	for i, c := range kind.Columns {
		_, number := got[i].(int64)
		if number != (c.Type == "integer") {
			t.Errorf("column %s of type %s has a %T", c.Name, c.Type, got[i])
		}
	}
}

func TestNodeRow(t *testing.T) {
	node := func(text string) *corev1.Node {
		n := parse[corev1.Node](t, text)
		n.Name, n.CreationTimestamp = "n1", ago(49*time.Hour)
		return n
	}
	wantRow(t, nodes(), node(`
metadata: {labels: {node-role.kubernetes.io/worker: "", node-role.kubernetes.io/control-plane: "true", kubernetes.io/role: edge}}
spec: {unschedulable: true}
status:
  conditions: [{type: MemoryPressure, status: "False"}, {type: Ready, status: "True"}]
  addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 10.0.0.1}]
  nodeInfo: {kubeletVersion: v1.37.2, osImage: Debian, kernelVersion: "6.18", containerRuntimeVersion: containerd://2.4.2, machineID: "", systemUUID: "", bootID: "", kubeProxyVersion: "", operatingSystem: linux, architecture: amd64}
`), []any{"n1", "Ready,SchedulingDisabled", "control-plane,edge,worker", "2d1h", "v1.37.2", "10.0.0.1", "<none>", "Debian", "6.18", "containerd://2.4.2"})
	wantRow(t, nodes(), node(`status: {conditions: [{type: Ready, status: Unknown}]}`),
		[]any{"n1", "NotReady", "<none>", "2d1h", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"})
	wantRow(t, nodes(), node(`{}`),
		[]any{"n1", "Unknown", "<none>", "2d1h", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"})
}

func TestSmallRows(t *testing.T) {
	cm := parse[corev1.ConfigMap](t, `{metadata: {name: a}, data: {a: b}, binaryData: {c: AA==}}`)
	cm.CreationTimestamp = ago(time.Minute)
	wantRow(t, configMaps(), cm, []any{"a", int64(2), "60s"})

	secret := parse[corev1.Secret](t, `{metadata: {name: a}, type: Opaque, data: {c: AA==}}`)
	wantRow(t, secrets(), secret, []any{"a", "Opaque", int64(1), "<unknown>"})

	sa := parse[corev1.ServiceAccount](t, `{metadata: {name: a}, secrets: [{name: b}]}`)
	wantRow(t, serviceAccounts(), sa, []any{"a", int64(1), "<unknown>"})

	ns := parse[corev1.Namespace](t, `{metadata: {name: a}, status: {phase: Terminating}}`)
	wantRow(t, namespaces(), ns, []any{"a", "Terminating", "<unknown>"})

	ep := parse[corev1.Endpoints](t, `{metadata: {name: a}, subsets: [{addresses: [{ip: 10.0.0.1}, {ip: "fd00::1"}], ports: [{port: 80}, {port: 81}]}]}`)
	wantRow(t, endpoints(), ep, []any{"a", "10.0.0.1:80,10.0.0.1:81,[fd00::1]:80 + 1 more...", "<unknown>"})

	template := parse[corev1.PodTemplate](t, `{metadata: {name: a}, template: {metadata: {labels: {b: c}}, spec: {containers: [{name: x, image: i}, {name: z, image: j}]}}}`)
	wantRow(t, podTemplates(), template, []any{"a", "x,z", "i,j", "b=c", "<unknown>"})
}

func TestEventRow(t *testing.T) {
	e := parse[corev1.Event](t, `
metadata: {name: e}
type: Warning
reason: BackOff
involvedObject: {kind: Pod, name: p, fieldPath: "spec.containers{a}"}
source: {component: kubelet, host: n1}
message: "back-off restarting\n"
count: 3
`)
	e.FirstTimestamp, e.LastTimestamp = ago(10*time.Minute), ago(5*time.Second)
	wantRow(t, events(), e, []any{"5s", "Warning", "BackOff", "pod/p", "spec.containers{a}", "kubelet, n1", "back-off restarting", "10m", int64(3), "e"})

	e = parse[corev1.Event](t, `
metadata: {name: e}
type: Normal
reason: Scheduled
involvedObject: {kind: Pod, name: p}
reportingComponent: default-scheduler
reportingInstance: s1
message: assigned
`)
	e.EventTime.Time = now.Add(-time.Minute)
	wantRow(t, events(), e, []any{"60s", "Normal", "Scheduled", "pod/p", "", "default-scheduler, s1", "assigned", "60s", int64(1), "e"})
}
