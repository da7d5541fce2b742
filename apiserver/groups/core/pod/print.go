package pod

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/resource"
)

func podRow(p *corev1.Pod, now time.Time) []any {
	s := summarize(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts > 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, resource.Since(s.lastRestart, now))
	}
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name,
		fmt.Sprintf("%d/%d", s.ready, s.total),
		s.status,
		restarts,
		resource.Since(p.CreationTimestamp, now),
		resource.OrNone(ip),
		resource.OrNone(p.Spec.NodeName),
		resource.OrNone(p.Status.NominatedNodeName),
		readinessGates(p),
	}
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return resource.None
	}
	held := 0
	for _, gate := range p.Spec.ReadinessGates {
		if conditionTrue(p, gate.ConditionType) {
			held++
		}
	}
	return fmt.Sprintf("%d/%d", held, len(p.Spec.ReadinessGates))
}

func conditionTrue(p *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podSummary is a pod in one line.
type podSummary struct {
	status       string
	ready, total int
	restarts     int
	lastRestart  metav1.Time
}

// summarize finds the word that describes a pod's state best: the reason why an init container does
// not end, else the fault of a container, else the phase; and before all of these the deletion of
// the pod.
func summarize(p *corev1.Pod) podSummary {
	s := podSummary{status: string(p.Status.Phase), total: len(p.Spec.Containers)}
	if p.Status.Reason != "" {
		s.status = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.status = corev1.PodReasonSchedulingGated
		}
	}
	initializing, sidecars := s.addInit(p)
	if !initializing || conditionTrue(p, corev1.PodInitialized) {
		s.addContainers(p, sidecars)
	}
	switch terminal := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded; {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == nodeLost:
		s.status = string(corev1.PodUnknown)
	case !terminal:
		s.status = "Terminating"
	}
	return s
}

// nodeLost is the reason of a pod whose node stopped reporting.
const nodeLost = "NodeLost"

// restartCount counts restarts and keeps the newest one.
type restartCount struct {
	count int
	last  metav1.Time
}

func (r *restartCount) add(c *corev1.ContainerStatus) {
	r.count += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && r.last.Before(&t.FinishedAt) {
		r.last = t.FinishedAt
	}
}

// addInit counts init containers, and reports whether the pod still waits for them and how often
// those that run beside the others (sidecars) were restarted.
func (s *podSummary) addInit(p *corev1.Pod) (initializing bool, sidecars restartCount) {
	isSidecar := map[string]bool{}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			isSidecar[c.Name] = true
			s.total++
		}
	}
	var all restartCount
	defer func() { s.restarts, s.lastRestart = all.count, all.last }()
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		all.add(c)
		if isSidecar[c.Name] {
			sidecars.add(c)
		}
		switch {
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0:
			continue
		case isSidecar[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case c.State.Terminated != nil:
			s.status = "Init:" + terminationReason(c.State.Terminated)
		case c.State.Waiting != nil && c.State.Waiting.Reason != "" && c.State.Waiting.Reason != "PodInitializing":
			s.status = "Init:" + c.State.Waiting.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true, sidecars
	}
	return false, sidecars
}

// addContainers counts the containers that start after the init containers. The first container
// with a reason sets the pod's.
func (s *podSummary) addContainers(p *corev1.Pod, restarts restartCount) {
	running := false
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		restarts.add(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.status = terminationReason(c.State.Terminated)
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	s.restarts, s.lastRestart = restarts.count, restarts.last
	// Some containers ended well and others still run.
	if s.status == "Completed" && running {
		s.status = "NotReady"
		if conditionTrue(p, corev1.PodReady) {
			s.status = string(corev1.PodRunning)
		}
	}
}

func terminationReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}
