package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

func TestPodRow(t *testing.T) {
	const two = "spec: {nodeName: n1, containers: [{name: a}, {name: b}]}\n"
	const withInit = "spec: {initContainers: [{name: i}, {name: j}], containers: [{name: a}]}\n"
	const sidecar = "spec: {initContainers: [{name: s, restartPolicy: Always}], containers: [{name: a}]}\n"
	for name, c := range map[string]struct {
		pod                     string
		ready, status, restarts string
		deleted                 bool
	}{
		"new": {two + `status: {phase: Pending}`, "0/2", "Pending", "0", false},
		"gated": {
			two +
				`status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: SchedulingGated}]}`, "0/2", "SchedulingGated", "0", false},
		"creating": {
			two +
				`status: {phase: Pending, containerStatuses: [{name: a, state: {waiting: {reason: ContainerCreating}}}, {name: b, state: {waiting: {reason: ContainerCreating}}}]}`, "0/2", "ContainerCreating", "0", false},
		"running": {
			two +
				`status: {phase: Running, containerStatuses: [{name: a, ready: true, state: {running: {}}}, {name: b, ready: true, state: {running: {}}}]}`, "2/2", "Running", "0", false},
		"not ready": {
			two +
				`status: {phase: Running, containerStatuses: [{name: a, ready: true, state: {running: {}}}, {name: b, state: {running: {}}}]}`, "1/2", "Running", "0", false},
		"crashing": {
			two +
				`status: {phase: Running, containerStatuses: [{name: a, ready: true, state: {running: {}}}, {name: b, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1, finishedAt: "2030-01-02T03:04:00Z"}}}]}`, "1/2", "CrashLoopBackOff", "4 (5s ago)", false},
		"first wins": {
			two +
				`status: {phase: Pending, containerStatuses: [{name: a, state: {waiting: {reason: ErrImagePull}}}, {name: b, state: {waiting: {reason: CrashLoopBackOff}}}]}`, "0/2", "ErrImagePull", "0", false},
		"completed": {
			two +
				`status: {phase: Succeeded, containerStatuses: [{name: a, state: {terminated: {reason: Completed}}}, {name: b, state: {terminated: {reason: Completed}}}]}`, "0/2", "Completed", "0", false},
		"half done": {
			two +
				`status: {phase: Running, containerStatuses: [{name: a, state: {terminated: {reason: Completed}}}, {name: b, ready: true, state: {running: {}}}]}`, "1/2", "NotReady", "0", false},
		"half done, ready": {
			two +
				`status: {phase: Running, conditions: [{type: Ready, status: "True"}], containerStatuses: [{name: a, state: {terminated: {reason: Completed}}}, {name: b, ready: true, state: {running: {}}}]}`, "1/2", "Running", "0", false},
		"signal": {
			two +
				`status: {phase: Failed, containerStatuses: [{name: a, state: {terminated: {signal: 9, exitCode: 137}}}]}`, "0/2", "Signal:9", "0", false},
		"exit code": {
			two + `status: {phase: Failed, containerStatuses: [{name: a, state: {terminated: {exitCode: 2}}}]}`, "0/2",
			"ExitCode:2", "0", false},
		"evicted": {two + `status: {phase: Failed, reason: Evicted}`, "0/2", "Evicted", "0", false},
		"terminating": {
			two + `status: {phase: Running, containerStatuses: [{name: a, ready: true, state: {running: {}}}]}`, "1/2",
			"Terminating", "0", true},
		"deleted after its end": {
			two +
				`status: {phase: Succeeded, containerStatuses: [{name: a, state: {terminated: {reason: Completed}}}]}`,
			"0/2", "Completed", "0", true},
		"node lost": {two + `status: {phase: Running, reason: NodeLost}`, "0/2", "Unknown", "0", true},

		"init running": {
			withInit +
				`status: {phase: Pending, initContainerStatuses: [{name: i, state: {running: {}}}, {name: j, state: {waiting: {reason: PodInitializing}}}], containerStatuses: [{name: a, state: {waiting: {reason: PodInitializing}}}]}`, "0/1", "Init:0/2", "0", false},
		"init second": {
			withInit +
				`status: {phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 0}}}, {name: j, state: {waiting: {reason: PodInitializing}}}]}`, "0/1", "Init:1/2", "0", false},
		"init failed": {
			withInit +
				`status: {phase: Failed, initContainerStatuses: [{name: i, restartCount: 1, state: {terminated: {exitCode: 3, reason: Error}}}]}`, "0/1", "Init:Error", "1", false},
		"init crashing": {
			withInit +
				`status: {phase: Pending, initContainerStatuses: [{name: i, restartCount: 2, lastState: {terminated: {finishedAt: "2030-01-02T03:03:05Z"}}, state: {waiting: {reason: CrashLoopBackOff}}}]}`, "0/1", "Init:CrashLoopBackOff", "2 (60s ago)", false},
		"init done": {
			withInit +
				`status: {phase: Running, conditions: [{type: Initialized, status: "True"}], initContainerStatuses: [{name: i, restartCount: 2, state: {terminated: {exitCode: 0}}}, {name: j, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: a, ready: true, state: {running: {}}}]}`, "1/1", "Running", "0", false},
		"sidecar": {
			sidecar +
				`status: {phase: Running, conditions: [{type: Initialized, status: "True"}], initContainerStatuses: [{name: s, ready: true, started: true, restartCount: 2, state: {running: {}}}], containerStatuses: [{name: a, ready: true, restartCount: 1, state: {running: {}}}]}`, "2/2", "Running", "3", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := grouptest.Parse[corev1.Pod](t, "metadata: {name: p}\n"+c.pod)
			p.CreationTimestamp = grouptest.Ago(90 * time.Second)
			if c.deleted {
				deleted := grouptest.Ago(0)
				p.DeletionTimestamp = &deleted
			}
			node := resource.None
			if p.Spec.NodeName != "" {
				node = p.Spec.NodeName
			}
			grouptest.WantRow(t, Resource(), p, "p", c.ready, c.status, c.restarts, "90s", resource.None, node,
				resource.None, resource.None)
		})
	}
}

func TestPodRowWide(t *testing.T) {
	p := grouptest.Parse[corev1.Pod](t, `
metadata: {name: p}
spec: {nodeName: n1, containers: [{name: a}], readinessGates: [{conditionType: x}, {conditionType: y}]}
status: {phase: Running, podIP: 10.42.0.5, podIPs: [{ip: 10.42.0.5}], nominatedNodeName: n2, conditions: [{type: y, status: "True"}]}
`)
	grouptest.WantRow(t, Resource(), p, "p", "0/1", "Running", "0", "<unknown>", "10.42.0.5", "n1", "n2", "1/2")
}
