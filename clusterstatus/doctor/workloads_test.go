package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// pod was made an hour ago, and has the state of a container, if any.
func pod(name string, phase corev1.PodPhase, state *corev1.ContainerState) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))},
		Spec:   corev1.PodSpec{NodeName: "a1", SchedulerName: "default-scheduler"},
		Status: corev1.PodStatus{Phase: phase}}
	if state != nil {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "c", Image: "web:1", RestartCount: 7, State: *state,
				LastTerminationState: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}}}
	}
	return p
}

func waiting(reason, message string) *corev1.ContainerState {
	return &corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func unscheduled(p corev1.Pod, reason, message string) corev1.Pod {
	p.Spec.NodeName = ""
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message}}
	return p
}

func TestTroublesOfPods(t *testing.T) {
	changed := func(p corev1.Pod, change func(*corev1.Pod)) corev1.Pod {
		change(&p)
		return p
	}
	for name, c := range map[string]struct {
		pod        corev1.Pod
		text, mend string // empty for no finding
	}{
		"running": {pod("p", corev1.PodRunning, &corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), "",
			""},
		"done": {pod("p", corev1.PodSucceeded, waiting("CrashLoopBackOff", "")), "", ""},
		"pull": {pod("p", corev1.PodPending, waiting("ImagePullBackOff", "no such host")),
			"pod ns/p: the image web:1 cannot be pulled: no such host", "barque kubectl -n ns describe pod p"},
		"config": {pod("p", corev1.PodPending, waiting("CreateContainerConfigError", `secret "s" not found`)),
			`pod ns/p: container c cannot be started: secret "s" not found`, "describe pod p"},
		"crashes": {pod("p", corev1.PodRunning, waiting("CrashLoopBackOff", "back-off")),
			"pod ns/p: container c ends again and again: 7 restarts, the last time with exit code 3 (Error)",
			"barque kubectl -n ns logs p -c c --previous"},
		"never began": {
			changed(pod("p", corev1.PodRunning, waiting("CrashLoopBackOff", "back-off")), func(p *corev1.Pod) {
				*p.Status.ContainerStatuses[0].LastTerminationState.Terminated = corev1.ContainerStateTerminated{
					ExitCode: 128, Reason: "StartError", Message: "exec: no such file"}
			}), "pod ns/p: container c cannot be started: exec: no such file", "describe pod p"},
		"cannot run": {
			changed(pod("p", corev1.PodRunning, waiting("CrashLoopBackOff", "back-off")), func(p *corev1.Pod) {
				*p.Status.ContainerStatuses[0].LastTerminationState.Terminated = corev1.ContainerStateTerminated{
					ExitCode: 127, Reason: "ContainerCannotRun"}
			}), "pod ns/p: container c cannot be started: ContainerCannotRun", "describe pod p"},
		"waits": {
			unscheduled(pod("p", corev1.PodPending, nil), "Unschedulable",
				"0/3 nodes are available: 3 Insufficient cpu."),
			"pod ns/p: no node takes it: 0/3 nodes are available: 3 Insufficient cpu.", "describe pod p"},
		"gated": {unscheduled(pod("p", corev1.PodPending, nil), corev1.PodReasonSchedulingGated, ""), "",
			""},
		"no scheduler": {changed(pod("p", corev1.PodPending, nil), func(p *corev1.Pod) { p.Spec.NodeName = "" }),
			"pod ns/p: the scheduler default-scheduler has not judged it", "describe pod p"},
		"starts": {pod("told", corev1.PodPending, waiting("ContainerCreating", "")),
			"it has been starting on a1 since 2026-11-28T11:00:00Z: FailedMount: no such volume", "describe pod told"},
		"starts, silently": {pod("p", corev1.PodPending, waiting("ContainerCreating", "")),
			"since 2026-11-28T11:00:00Z: no warning says why", "describe pod p"},
		"just made": {
			changed(unscheduled(pod("p", corev1.PodPending, nil), "Unschedulable", "x"),
				func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(noon) }), "", ""},
		"is deleted": {
			changed(pod("p", corev1.PodRunning, waiting("CrashLoopBackOff", "")),
				func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }), "", ""},
	} {
		event := func(at time.Duration, kind, message string) corev1.Event {
			return corev1.Event{InvolvedObject: corev1.ObjectReference{UID: "told"}, Type: kind, Reason: "FailedMount",
				Message: message, LastTimestamp: metav1.NewTime(noon.Add(-at))}
		}
		o := objects{pods: []corev1.Pod{c.pod},
			events: []corev1.Event{event(time.Minute, corev1.EventTypeWarning, "no such volume"),
				event(time.Hour, corev1.EventTypeWarning, "older"), event(0, corev1.EventTypeNormal, "newer")}}
		found, _ := o.workloads(noon)
		switch {
		case c.text == "" && len(found) > 0, c.text != "" && len(found) != 1:
			t.Errorf("%s: %v", name, found)
		case c.text != "" && (!strings.Contains(found[0].Text, c.text) || !strings.Contains(found[0].Mend, c.mend)):
			t.Errorf("%s: %s; want %q and %q", name, found[0], c.text, c.mend)
		}
	}
}

// TestWorkloadsAreGrouped: pods of one workload with the same fault are one finding, and a thousand
// workloads do not fill the screen.
func TestWorkloadsAreGrouped(t *testing.T) {
	var o objects
	for i := range 3 {
		p := pod(fmt.Sprint("web-", i), corev1.PodPending, waiting("ErrImagePull", "refused"))
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: ptr.To(true)}}
		o.pods = append(o.pods, p)
	}
	found, more := o.workloads(noon)
	if len(found) != 1 || more != 0 ||
		found[0].Text != "3 pods of ReplicaSet ns/web, such as web-0: the image web:1 cannot be pulled: refused" {
		t.Errorf("%v, and %d more", found, more)
	}
	for i := range 40 {
		o.pods = append(o.pods, pod(fmt.Sprint("p", i), corev1.PodRunning, waiting("CrashLoopBackOff", "")))
	}
	if found, more := o.workloads(noon); len(found) != mostWorkloads || more != 41-mostWorkloads {
		t.Errorf("%d findings, and %d more", len(found), more)
	}
}

// TestStuckNamespaces: a namespace that cannot end is named with the reasons in its status.
func TestStuckNamespaces(t *testing.T) {
	ending := func(ago time.Duration) corev1.Namespace {
		return corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "old", DeletionTimestamp: ptr.To(metav1.NewTime(noon.Add(-ago)))},
			Status: corev1.NamespaceStatus{Conditions: []corev1.NamespaceCondition{
				{Type: corev1.NamespaceDeletionContentFailure, Status: corev1.ConditionFalse,
					Message: "All content successfully deleted"},
				{Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionTrue,
					Message: "Some content in the namespace has finalizers remaining: x.org/hold in 1 resource instances"}}}}
	}
	o := objects{
		namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, ending(time.Second),
			ending(time.Hour)}}
	found, _ := o.workloads(noon)
	if len(found) != 1 ||
		found[0].Text != "namespace old has been ending since 2026-11-28T11:00:00Z: Some content in the namespace has finalizers remaining: x.org/hold in 1 resource instances" || !strings.Contains(found[0].Mend, "-n old patch RESOURCE NAME") {
		t.Errorf("%v", found)
	}
}
