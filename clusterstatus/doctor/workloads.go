package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/network/faults"
)

// Faults of workloads, read from objects of the API. They are faults of what the cluster runs, or
// of its capacity, and need not be the cluster's own.

const (
	// waitsLong is how long a pod waits, or a namespace ends, before that is a finding.
	waitsLong = time.Minute
	// mostWorkloads bounds the findings on workloads; a note has the number of the others.
	mostWorkloads = 20
)

// objects are the objects of the API that the doctor reads.
type objects struct {
	namespaces []corev1.Namespace
	pods       []corev1.Pod
	events     []corev1.Event
}

// pullFailures are the kubelet's reasons of a container that waits for its image.
var pullFailures = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
	"RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed"}

// configFailures are the kubelet's reasons of a container that cannot be made.
var configFailures = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError",
	"PreCreateHookError", "PostStartHookError"}

// startFailures are the runtimes' reasons of a container whose process never began. It has no log.
var startFailures = []string{"StartError", "ContainerCannotRun", "OCIRuntimeError"}

// trouble is a fault of one pod.
type trouble struct {
	text string
	mend string
	// kind and container tell which troubles of a workload's pods are the same.
	kind, container string
}

// workloads returns the findings, and the number of those that are left out. It is pure.
func (o *objects) workloads(now time.Time) (found []clusterstatus.Warning, more int) {
	for i := range o.namespaces {
		if w, stuck := stuckNamespace(&o.namespaces[i], now); stuck {
			found = append(found, w)
		}
	}
	type group struct{ owner, kind, container string }
	at := map[group]int{}
	count := map[group]int{}
	first := map[group]*trouble{}
	var order []group
	lastEvent := o.lastWarnings()
	for i := range o.pods {
		p := &o.pods[i]
		t := troubleOf(p, lastEvent[string(p.UID)], now)
		if t == nil {
			continue
		}
		g := group{ownerOf(p), t.kind, t.container}
		if count[g] == 0 {
			order, first[g], at[g] = append(order, g), t, i
		}
		count[g]++
	}
	for _, g := range order {
		p, subject := &o.pods[at[g]], ""
		if count[g] == 1 {
			subject = fmt.Sprintf("pod %s/%s", p.Namespace, p.Name)
		} else {
			subject = fmt.Sprintf("%s of %s, such as %s", terminal.Plural(count[g], "pod", "pods"), g.owner, p.Name)
		}
		found = append(found,
			clusterstatus.Warning{Severity: clusterstatus.Attention, Text: subject + ": " + first[g].text,
				Mend: first[g].mend})
	}
	if len(found) > mostWorkloads {
		found, more = found[:mostWorkloads], len(found)-mostWorkloads
	}
	return found, more
}

// stuckNamespace returns the finding on a namespace that has been ending for long.
func stuckNamespace(ns *corev1.Namespace, now time.Time) (w clusterstatus.Warning, stuck bool) {
	if ns.DeletionTimestamp == nil || now.Sub(ns.DeletionTimestamp.Time) < waitsLong {
		return w, false
	}
	var why []string
	for _, c := range ns.Status.Conditions {
		if c.Status == corev1.ConditionTrue && c.Message != "" {
			why = append(why, c.Message)
		}
	}
	if len(ns.Finalizers) > 0 {
		why = append(why, "it has the finalizers "+strings.Join(ns.Finalizers, ", "))
	}
	mend := "barque kubectl describe namespace " + ns.Name
	if slices.ContainsFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
		return c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue
	}) {
		mend = fmt.Sprintf(
			"start the controller that owns the finalizer; when it is gone for good: barque kubectl -n %s patch RESOURCE NAME --type merge -p '{\"metadata\":{\"finalizers\":null}}'", ns.Name)
	}
	w = clusterstatus.Warning{Severity: clusterstatus.Attention, Mend: mend,
		Text: fmt.Sprintf("namespace %s has been ending since %s: %s", ns.Name,
			ns.DeletionTimestamp.UTC().Format(time.RFC3339), cmp.Or(strings.Join(why, "; "), "no reason is known"))}
	return w, true
}

// troubleOf returns the fault of a pod; nil without one. event is the text of its last warning.
func troubleOf(p *corev1.Pod, event string, now time.Time) *trouble {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil {
		return nil
	}
	describe := fmt.Sprintf("barque kubectl -n %s describe pod %s", p.Namespace, p.Name)
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		waiting := s.State.Waiting
		switch {
		case waiting == nil:
		case slices.Contains(pullFailures, waiting.Reason):
			return &trouble{kind: "pull", container: s.Name, mend: describe,
				text: fmt.Sprintf("the image %s cannot be pulled: %s", s.Image,
					cmp.Or(waiting.Message, waiting.Reason))}
		case slices.Contains(configFailures, waiting.Reason):
			return &trouble{kind: "config", container: s.Name, mend: describe,
				text: fmt.Sprintf("container %s cannot be started: %s", s.Name,
					cmp.Or(waiting.Message, waiting.Reason))}
		case waiting.Reason == "CrashLoopBackOff":
			ended := ""
			if t := s.LastTerminationState.Terminated; t != nil && slices.Contains(startFailures, t.Reason) {
				return &trouble{kind: "config", container: s.Name, mend: describe,
					text: fmt.Sprintf("container %s cannot be started: %s", s.Name,
						cmp.Or(strings.TrimSpace(t.Message), t.Reason))}
			}
			if t := s.LastTerminationState.Terminated; t != nil {
				ended = fmt.Sprintf(", the last time with exit code %d (%s)", t.ExitCode, t.Reason)
			}
			return &trouble{kind: "crash", container: s.Name,
				mend: fmt.Sprintf("barque kubectl -n %s logs %s -c %s --previous", p.Namespace, p.Name, s.Name),
				text: fmt.Sprintf("container %s ends again and again: %s%s", s.Name,
					terminal.Plural(int(s.RestartCount), "restart", "restarts"), ended)}
		}
	}
	if p.Status.Phase != corev1.PodPending || now.Sub(p.CreationTimestamp.Time) < waitsLong {
		return nil
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			if c.Reason == corev1.PodReasonSchedulingGated {
				return nil // its author wants it to wait
			}
			return &trouble{kind: "unscheduled", mend: describe,
				text: "no node takes it: " + cmp.Or(c.Message, c.Reason)}
		}
	}
	if p.Spec.NodeName == "" {
		return &trouble{kind: "unseen", mend: describe,
			text: fmt.Sprintf("the scheduler %s has not judged it", p.Spec.SchedulerName)}
	}
	return &trouble{kind: "starting", mend: describe,
		text: fmt.Sprintf("it has been starting on %s since %s: %s", p.Spec.NodeName,
			startedAt(p).UTC().Format(time.RFC3339), cmp.Or(event, "no warning says why"))}
}

func startedAt(p *corev1.Pod) time.Time {
	if p.Status.StartTime != nil {
		return p.Status.StartTime.Time
	}
	return p.CreationTimestamp.Time
}

// ownerOf names the workload of a pod.
func ownerOf(p *corev1.Pod) string {
	if owner := metav1.GetControllerOf(p); owner != nil {
		return fmt.Sprintf("%s %s/%s", owner.Kind, p.Namespace, owner.Name)
	}
	return "pod " + p.Namespace + "/" + p.Name
}

// lastWarnings returns the text of the last warning of each object, by its UID.
func (o *objects) lastWarnings() map[string]string {
	last, at := map[string]string{}, map[string]time.Time{}
	for i := range o.events {
		e := &o.events[i]
		id := string(e.InvolvedObject.UID)
		if e.Type != corev1.EventTypeWarning || faults.At(e).Before(at[id]) {
			continue
		}
		last[id], at[id] = e.Reason+": "+e.Message, faults.At(e)
	}
	return last
}
