package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/restarts"
)

// StatusInput is the input of a pod's status.
type StatusInput struct {
	Facts
	Plan Plan
	// Ending is set once the pod is being ended for good: ended containers are not started again.
	// The pod is over once Plan.Ended is set, too.
	Ending bool
	// Reason and Message are set when the kubelet itself ended the pod, such as DeadlineExceeded.
	Reason, Message string
	HostIPs         []string
	Runtime         string // the name before :// in container IDs
	Resize          ResizeState
	Disrupted       bool // the node ends the pod for its own sake
	Refused         bool // the node has not admitted the pod: no container of it may start
	// VolumeImages has the images of volumes, by volume, in the form of a container's ImageID. A
	// missing one is not known yet.
	VolumeImages map[string]string
}

// Status computes the status for clients. It starts from the API server's status, so that
// conditions of other writers stay and times change only with a change.
func Status(in StatusInput) v1.PodStatus {
	pod := in.Pod
	s := *pod.Status.DeepCopy()
	s.ObservedGeneration = pod.Generation
	s.QOSClass = cgroups.QoS(pod)
	if s.StartTime == nil {
		t := metav1.NewTime(in.Now)
		s.StartTime = &t
	}
	s.InitContainerStatuses = containerStatuses(&in, pod.Spec.InitContainers, pod.Status.InitContainerStatuses, true)
	s.ContainerStatuses = containerStatuses(&in, pod.Spec.Containers, pod.Status.ContainerStatuses, false)
	s.EphemeralContainerStatuses = ephemeralStatuses(&in)

	s.HostIP, s.HostIPs = "", nil
	for i, ip := range in.HostIPs {
		if i == 0 {
			s.HostIP = ip
		}
		s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
	}
	if ips := IPs(pod, &in.Observed, in.HostIPs); len(ips) > 0 {
		s.PodIP, s.PodIPs = ips[0], nil
		for _, ip := range ips {
			s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
		}
	}

	s.Phase = phase(&in, s.InitContainerStatuses, s.ContainerStatuses)
	if in.Reason != "" {
		s.Phase, s.Reason, s.Message = v1.PodFailed, in.Reason, in.Message
	}
	switch {
	case podinfo.Finished(pod.Status.Phase):
		s.Phase = pod.Status.Phase
	case podinfo.Finished(s.Phase) && in.Ending && !in.Plan.Ended:
		// It is over when nothing of it is left to stop: from then on other pods may
		// have its resources.
		s.Phase = cmp.Or(pod.Status.Phase, v1.PodPending)
		s.Reason, s.Message = pod.Status.Reason, pod.Status.Message
	}
	setConditions(&in, &s)
	if in.Refused { // kubectl shows the reason then, and not that containers are being created
		s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses = nil, nil, nil
	}
	return s
}

// IPs returns a pod's addresses: those of its sandbox, or the node's on the host's network.
func IPs(pod *v1.Pod, o *Observed, hostIPs []string) []string {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	if box := o.Sandbox(); box != nil {
		return box.IPs
	}
	return nil
}

func containerStatuses(
	in *StatusInput, specs []v1.Container, old []v1.ContainerStatus, init bool,
) []v1.ContainerStatus {
	var list []v1.ContainerStatus
	for i := range specs {
		c := &specs[i]
		var before *v1.ContainerStatus
		if at := slices.IndexFunc(old, func(s v1.ContainerStatus) bool { return s.Name == c.Name }); at >= 0 {
			before = &old[at]
		}
		list = append(list, containerStatus(in, c, before, init))
	}
	return list
}

func ephemeralStatuses(in *StatusInput) []v1.ContainerStatus {
	var list []v1.ContainerStatus
	for i := range in.Pod.Spec.EphemeralContainers {
		c := v1.Container(in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		s := containerStatus(in, &c, nil, false)
		s.Ready, s.Started = false, nil
		list = append(list, s)
	}
	return list
}

func containerStatus(in *StatusInput, c *v1.Container, before *v1.ContainerStatus, init bool) v1.ContainerStatus {
	if in.Named[c.Name].Replacing && before != nil && !in.Ending {
		return *before // it is replaced in one step, as clients see it
	}
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: mountStatuses(in, c, before)}
	last := in.Observed.Newest(c.Name)
	if last == nil {
		withoutContainer(in, c, before, &s)
	} else {
		fromContainer(in, last, &s)
		w, ok := in.Plan.Waiting[c.Name]
		if w.Reason == reasonCreating || w.Reason == reasonInitializing {
			ok = false
		}
		if !ok && in.former(last) {
			w, ok = Waiting{Reason: reasonRestartingAll, Message: messageRestartingAll}, true
		}
		if ok && last.State == Exited && !in.Ending {
			s.LastTerminationState = s.State
			s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}}
		}
	}
	started := false
	if last != nil && last.State == Running {
		is := in.Instances[last.ID]
		started = is.Health.Started && !is.Hook
		s.Ready = started && is.Health.Ready
		if init && !restarts.IsSidecar(c) {
			s.Ready = false
		}
	}
	if init && !restarts.IsSidecar(c) && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
		s.Ready = true
	}
	s.Started = &started
	if s.State.Running != nil || s.ContainerID != "" {
		s.Resources = actualResources(in.Pod, c, last, before)
		s.AllocatedResources = c.Resources.Requests.DeepCopy()
	}
	return s
}

// withoutContainer fills the status of a container that the runtime does not know: it was not
// created yet, never started, or the runtime has lost it.
func withoutContainer(in *StatusInput, c *v1.Container, before *v1.ContainerStatus, s *v1.ContainerStatus) {
	if before != nil && before.ContainerID != "" {
		s.RestartCount, s.ImageID, s.ContainerID = before.RestartCount, before.ImageID, before.ContainerID
		s.LastTerminationState = before.LastTerminationState
		ending := in.Ending || podinfo.Finished(in.Pod.Status.Phase)
		if ended := (v1.ContainerState{Terminated: before.State.Terminated}); ending || wasStarted(before) {
			if ended.Terminated == nil {
				ended.Terminated = &v1.ContainerStateTerminated{
					ExitCode: 137, Reason: "ContainerStatusUnknown", ContainerID: before.ContainerID,
					Message: "The container could not be located when the pod was looked at; the pod's node or runtime may have lost it.",
				}
			}
			if ending || restarts.Policy(in.Pod, c) == v1.RestartPolicyNever {
				s.State = ended
				return
			}
			s.LastTerminationState = ended
		}
	}
	w, ok := in.Plan.Waiting[c.Name]
	if !ok {
		w.Reason = reasonCreating
		if len(in.Pod.Spec.InitContainers) > 0 {
			w.Reason = reasonInitializing
		}
	}
	s.State.Waiting = &v1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}
}

func fromContainer(in *StatusInput, c *Container, s *v1.ContainerStatus) {
	s.ContainerID = in.Runtime + "://" + c.ID
	s.RestartCount = int32(c.Attempt)
	s.ImageID = c.ImageID
	s.User = c.User
	if c.Image != "" {
		s.Image = c.Image
	}
	switch c.State {
	case Created:
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: reasonCreating}
	case Running:
		s.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.NewTime(c.StartedAt)}
	default:
		s.State.Terminated = terminated(in, c)
	}
	if p := in.Observed.previous(c); p != nil {
		s.LastTerminationState.Terminated = terminated(in, p)
	}
}

func terminated(in *StatusInput, c *Container) *v1.ContainerStateTerminated {
	t := &v1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: c.Reason, Message: share(in.Pod, c.Message),
		ContainerID: in.Runtime + "://" + c.ID,
		StartedAt:   metav1.NewTime(c.StartedAt), FinishedAt: metav1.NewTime(c.FinishedAt),
	}
	if t.Reason == "" {
		t.Reason = "Completed"
		if c.ExitCode != 0 {
			t.Reason = "Error"
		}
	}
	if c.State == Unknown {
		t.Reason, t.ExitCode = "ContainerStatusUnknown", 137
	}
	return t
}

// maxPodMessages bounds the messages of all containers of a pod together, in bytes.
const maxPodMessages = 12 << 10

// share cuts a message to a container's share of the pod's bound on messages.
func share(pod *v1.Pod, message string) string {
	containers := len(pod.Spec.Containers) + len(pod.Spec.InitContainers) + len(pod.Spec.EphemeralContainers)
	most := maxPodMessages / max(containers, 1)
	return strings.ToValidUTF8(message[:min(len(message), most)], "")
}

func mountStatuses(in *StatusInput, c *v1.Container, before *v1.ContainerStatus) []v1.VolumeMountStatus {
	var list []v1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		status := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil {
				mode = *m.RecursiveReadOnly
			}
			status.RecursiveReadOnly = &mode
		}
		if id := in.VolumeImages[m.Name]; id != "" {
			status.VolumeStatus = &v1.VolumeStatus{Image: &v1.ImageVolumeStatus{ImageRef: id}}
		} else if before != nil {
			at := slices.IndexFunc(before.VolumeMounts,
				func(b v1.VolumeMountStatus) bool { return b.Name == m.Name && b.MountPath == m.MountPath })
			if at >= 0 {
				status.VolumeStatus = before.VolumeMounts[at].VolumeStatus // an earlier process knew
			}
		}
		list = append(list, status)
	}
	return list
}

// phase sums the containers up as Kubernetes defines it.
func phase(in *StatusInput, init, regular []v1.ContainerStatus) v1.PodPhase {
	initializing := false
	for i := range in.Pod.Spec.InitContainers {
		c, s := &in.Pod.Spec.InitContainers[i], &init[i]
		if restarts.IsSidecar(c) {
			initializing = initializing || s.Started == nil || !*s.Started
			continue
		}
		last := in.Observed.Newest(c.Name)
		ended := s.State.Terminated
		if ended == nil && last == nil {
			ended = s.LastTerminationState.Terminated
		}
		switch {
		case last != nil && in.former(last):
			initializing = true
		case ended != nil && ended.ExitCode != 0 && !restarts.Again(in.Pod, c, ended.ExitCode):
			return v1.PodFailed
		case s.State.Terminated == nil || s.State.Terminated.ExitCode != 0:
			initializing = true
		}
	}
	var waiting, running, stopped, succeeded, restarting int
	for i := range regular {
		s := &regular[i]
		c := &in.Pod.Spec.Containers[i]
		switch {
		case s.State.Running != nil:
			running++
		case s.State.Terminated != nil:
			stopped++
			if s.State.Terminated.ExitCode == 0 {
				succeeded++
			}
			if restarts.Again(in.Pod, c, s.State.Terminated.ExitCode) {
				restarting++
			}
		case s.LastTerminationState.Terminated != nil:
			stopped++
			restarting++
		default:
			waiting++
		}
	}
	switch {
	case in.Ending && running == 0 && (stopped > 0 || waiting == 0):
		if stopped == succeeded && waiting == 0 {
			return v1.PodSucceeded
		}
		return v1.PodFailed
	case in.Ending && running == 0:
		return v1.PodFailed // it never got to run
	case running == 0 && stopped == 0 && initializing, waiting > 0:
		return v1.PodPending
	case running > 0:
		return v1.PodRunning
	case stopped > 0 && restarting > 0:
		return v1.PodRunning
	case stopped > 0 && stopped == succeeded:
		return v1.PodSucceeded
	case stopped > 0:
		return v1.PodFailed
	default:
		return v1.PodPending
	}
}

// setConditions sets the conditions that this package decides. Other conditions stay.
func setConditions(in *StatusInput, s *v1.PodStatus) {
	box := in.Observed.Sandbox()
	network := box != nil && box.Ready && (in.Pod.Spec.HostNetwork || len(box.IPs) > 0)
	setCondition(in, s, v1.PodReadyToStartContainers, network, "", "")

	ok, reason, message := initializedCondition(in, s)
	setCondition(in, s, v1.PodInitialized, ok, reason, message)

	containersReady, reason, message := containersReadyCondition(in, s)
	setCondition(in, s, v1.ContainersReady, containersReady, reason, message)
	if containersReady {
		var missing []string
		for _, gate := range in.Pod.Spec.ReadinessGates {
			if c := podinfo.Condition(s, gate.ConditionType); c == nil || c.Status != v1.ConditionTrue {
				missing = append(missing,
					fmt.Sprintf("the status of pod readiness gate %q is not \"True\"", gate.ConditionType))
			}
		}
		if len(missing) > 0 {
			containersReady, reason, message = false, "ReadinessGatesNotReady", strings.Join(missing, ", ")
		}
	}
	setCondition(in, s, v1.PodReady, containersReady, reason, message)
	setCondition(in, s, v1.PodScheduled, true, "", "")
	setResizeConditions(in, s)
	setRestartingCondition(in, s)
	if in.Disrupted {
		setCondition(in, s, v1.DisruptionTarget, true, v1.PodReasonTerminationByKubelet, in.Message)
	}
}

func initializedCondition(in *StatusInput, s *v1.PodStatus) (bool, string, string) {
	if s.Phase == v1.PodSucceeded {
		return true, "PodCompleted", ""
	}
	for i := range s.ContainerStatuses {
		if c := &s.ContainerStatuses[i]; c.State.Running != nil || c.ContainerID != "" {
			return true, "", "" // it has been past its init containers
		}
	}
	var incomplete []string
	for i := range in.Pod.Spec.InitContainers {
		st := &s.InitContainerStatuses[i]
		if restarts.IsSidecar(&in.Pod.Spec.InitContainers[i]) {
			if st.Started == nil || !*st.Started {
				incomplete = append(incomplete, st.Name)
			}
		} else if !st.Ready {
			incomplete = append(incomplete, st.Name)
		}
	}
	if len(incomplete) > 0 {
		return false, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %v", incomplete)
	}
	return true, "", ""
}

func containersReadyCondition(in *StatusInput, s *v1.PodStatus) (bool, string, string) {
	switch s.Phase {
	case v1.PodSucceeded:
		return false, "PodCompleted", ""
	case v1.PodFailed:
		return false, "PodFailed", ""
	}
	var unready []string
	for i := range in.Pod.Spec.InitContainers {
		if restarts.IsSidecar(&in.Pod.Spec.InitContainers[i]) && !s.InitContainerStatuses[i].Ready {
			unready = append(unready, s.InitContainerStatuses[i].Name)
		}
	}
	for i := range s.ContainerStatuses {
		if !s.ContainerStatuses[i].Ready {
			unready = append(unready, s.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		return false, "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", unready)
	}
	return true, "", ""
}

func setCondition(in *StatusInput, s *v1.PodStatus, kind v1.PodConditionType, ok bool, reason, message string) {
	status := v1.ConditionFalse
	if ok {
		status = v1.ConditionTrue
	}
	c := podinfo.Condition(s, kind)
	if c == nil {
		s.Conditions = append(s.Conditions, v1.PodCondition{Type: kind})
		c = &s.Conditions[len(s.Conditions)-1]
	}
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(in.Now)
	}
	c.Status, c.Reason, c.Message = status, reason, message
	c.ObservedGeneration = in.Pod.Generation
}
