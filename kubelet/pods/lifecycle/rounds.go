package lifecycle

import (
	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/restarts"
)

// Reason and message of a container that a rule restarts together with all others. The
// reason is upstream's.
const (
	reasonRestartingAll  = "RestartingAllContainers"
	messageRestartingAll = "A container has ended, and its rule restarts all containers of the pod"
)

// round counts how often a rule has restarted all containers of the pod. A container carries the
// round of its creation, and nothing else has to survive the kubelet: a container that ended by
// such a rule ended its round, and all containers of earlier rounds are created anew.
func (f *Facts) round() (round uint32) {
	for i := range f.Observed.Containers {
		c := &f.Observed.Containers[i]
		of := c.Round
		if spec := specOf(f.Pod, c.Name); spec != nil && c.State == Exited && restarts.All(spec, c.ExitCode) {
			of++
		}
		round = max(round, of)
	}
	return round
}

// former reports whether the container is of an earlier round.
func (f *Facts) former(c *Container) bool { return c.Round < f.round() }

// specOf returns an init container or a regular one, or nil.
func specOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// endRound ends the containers of an earlier round and reports whether any of them is left. The
// next round begins when none is.
func (p *Plan) endRound(f *Facts) (any bool) {
	for i := range f.Observed.Containers {
		c := &f.Observed.Containers[i]
		if c.State == Exited || !f.former(c) || specOf(f.Pod, c.Name) == nil {
			continue
		}
		any = true
		switch {
		case c.State == Created:
			p.RemoveContainers = append(p.RemoveContainers, c.ID)
		case !f.Instances[c.ID].Killing:
			p.Kill = append(p.Kill, Kill{ID: c.ID, Name: c.Name, Now: true, Reason: messageRestartingAll})
		}
	}
	return any
}

// nextRound starts a container of an earlier round again. The source of the restart waits for its
// back-off.
func (p *Plan) nextRound(f *Facts, c *v1.Container, last *Container) {
	if restarts.All(c, last.ExitCode) {
		p.restart(f, c, last)
	} else {
		p.start(f, c, nil)
	}
}

// setRestartingCondition sets the condition that all containers are being restarted. A pod without
// such a rule has no such condition.
func setRestartingCondition(in *StatusInput, s *v1.PodStatus) {
	if !restarts.CouldBeAll(in.Pod) {
		return
	}
	var p Plan
	if !in.Ending && p.endRound(&in.Facts) {
		setCondition(in, s, v1.AllContainersRestarting, true, "RestartAllContainersStarted", messageRestartingAll)
		return
	}
	setCondition(in, s, v1.AllContainersRestarting, false, "", "")
}
